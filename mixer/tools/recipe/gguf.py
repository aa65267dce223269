"""Models in GGUF files, as llama.cpp and Ollama have them, made into folders of ordinary weights."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import transformers
from filelock import AcquireReturnProxy, BaseFileLock, FileLock, Timeout
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging
from transformers.utils.hub import cached_file
from transformers.utils.import_utils import is_gguf_available

from mixer.utils.errors import wrong_value

logger = logging.get_logger(__name__)


def convert_gguf(name_or_path: Path | str, gguf_file: str, revision: str | None = None) -> Path:
    """Converts a GGUF file to a folder that `from_pretrained` loads: weights, configuration and tokenizer.

    Quantized weights become ordinary numbers, so that they can be trained and saved. The folder lies in the user's
    cache (`HF_HOME`), and is made once for each content of a file and version of transformers.

    Args:
        name_or_path: The folder of the file, or a name on the hub.
        gguf_file: The file's name in it.
        revision: On the hub: a branch, tag or commit.

    Returns:
        The folder.

    Raises:
        ValueError: If the package gguf is missing, there is no such file, or transformers cannot read it.
    """
    path = _file(name_or_path, gguf_file, revision)
    return cached_folder(f"{path.stem}-{transformers.__version__}", path, lambda folder: _convert(path, folder))


def cached_folder(name: str, source: Path, fill: Callable[[Path], None]) -> Path:
    """Returns a folder of the user's cache, filled once: other processes wait, and nobody sees a part of it.

    Args:
        name: Name of the folder, before a digest of the source's bytes: a copy elsewhere has the same folder.
        source: The file that the content is made from.
        fill: Writes the content to a new folder.
    """
    cache = Path(huggingface_hub.constants.HF_HOME) / "adaptive-mixer"
    cache.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        name = f"{name}-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"
    folder = cache / name
    if folder.is_dir():
        return folder
    with _waited_for(FileLock(f"{folder}.lock"), folder):
        if not folder.is_dir():
            logger.warning("Makes %s, once.", folder)
            with tempfile.TemporaryDirectory(dir=cache, prefix=f"{name}-") as temporary:
                fill(Path(temporary) / "content")
                shutil.move(Path(temporary) / "content", folder)
    return folder


def _waited_for(lock: BaseFileLock, folder: Path) -> AcquireReturnProxy[BaseFileLock]:
    """Takes the lock of a folder, and says so if another process has it."""
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        logger.warning("Waits for another process, which makes %s.", folder)
        return lock.acquire()


def _file(name_or_path: Path | str, gguf_file: str, revision: str | None) -> Path:
    if not is_gguf_available():
        raise wrong_value("gguf_file", "needs the package gguf: pip install gguf.")
    try:
        found = cached_file(str(name_or_path), gguf_file, revision=revision)
    except OSError as error:
        folder = Path(name_or_path)
        files = sorted(path.name for path in folder.glob("*.gguf")) if folder.is_dir() else []
        there = f" {folder} has {', '.join(files) or 'no GGUF file'}." if folder.is_dir() else f" {error}"
        text = f"{gguf_file!r} was not found in {str(name_or_path)!r}.{there}"
        raise wrong_value("gguf_file", text, found=gguf_file) from error
    return Path(str(found))


def _convert(path: Path, folder: Path) -> None:
    logger.warning("Converts %s: 135 million weights take half a minute of processor time.", path.name)
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        config = AutoConfig.from_pretrained(**source)
        auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model: PreTrainedModel = auto.from_pretrained(**source, **_unpacked())
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except Exception as error:  # a file that is none of GGUF's fails in many ways
        raise wrong_value("gguf_file", f"{path} cannot be read: {error}", found=path.name) from error
    # The weights are ordinary ones now: else transformers would refuse to save them.
    for owner, name in ((model, "hf_quantizer"), (model.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unpacked() -> dict[str, Any]:
    """Asks newer versions of transformers not to keep weights as they are packed in the file."""
    packs = getattr(transformers, "GgufConfig", None)
    return {} if packs is None else {"quantization_config": packs(dequantize=True)}
