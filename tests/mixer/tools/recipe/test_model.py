"""The model of a recipe, and what is made of files of weights: once for a content, wherever it lies."""

import threading
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from filelock import FileLock
from torch import nn

from mixer.tools.recipe import gguf
from mixer.tools.recipe.model import ModelRecipe
from tests.helpers import build_model
from tests.refusals import refused

FACTORY = "tests.helpers.build_model"


def test_a_function_gives_the_model() -> None:
    assert type(ModelRecipe(factory=FACTORY, arguments={"name": "gpt2"}).build()).__name__ == "GPT2LMHeadModel"
    assert ModelRecipe(factory=FACTORY, arguments={"name": "gpt2"}).build(has_weights=False).device.type == "meta"


def model_of_values() -> nn.Module:
    """A function that needs the values of a tensor, which the meta device has not."""
    return build_model(["gpt2"][int(torch.zeros(1).item())])


def test_a_function_that_reads_values_gives_a_model_without_weights_too() -> None:
    model = ModelRecipe(factory=f"{__name__}.model_of_values").build(has_weights=False)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"config": {"model_type": "gpt2"}, "factory": FACTORY}, "factory"),
        ({"name_or_path": "gpt2", "factory": FACTORY}, "factory"),
        ({"arguments": {"name": "gpt2"}}, "arguments"),
        ({"factory": "tests.helpers.no_such"}, "factory"),
        ({"factory": FACTORY, "arguments": {"size": 2}}, "factory"),
        ({"config": {"model_type": "gpt2"}, "quantization": {"load_in_4bit": True}}, "quantization"),
        ({}, "name_or_path"),
    ],
)
def test_what_gives_no_model_or_two_is_refused(changes: dict[str, Any], option: str) -> None:
    with refused(option):
        ModelRecipe(**changes).build()


def test_a_folder_without_a_model_and_one_that_is_not_there_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ModelRecipe(name_or_path=str(tmp_path / "gone")).build()
    with pytest.raises((OSError, ValueError)) as caught:
        ModelRecipe(name_or_path=str(tmp_path)).build()
    assert "there is no folder" not in str(caught.value)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "adaptive-mixer"


def test_copies_of_a_file_share_a_folder_and_other_bytes_have_their_own(tmp_path: Path, cache: Path) -> None:
    made = []
    for name, content in (("a", b"weights"), ("b", b"weights"), ("c", b"Weights")):
        (tmp_path / name).write_bytes(content)
        made.append(gguf.cached_folder("model", tmp_path / name, Path.mkdir))
    assert made[0] == made[1]
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {made[0].name, made[2].name}


def test_a_process_that_waits_says_for_what(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(b"weights")
    folder = gguf.cached_folder("model", tmp_path / "source", Path.mkdir)
    folder.rmdir()
    said, waits = list[str](), threading.Event()

    def tell(text: str, *values: object) -> None:
        said.append(text % values)
        waits.set()

    monkeypatch.setattr(gguf.logger, "warning", tell)
    results = list[Path]()
    waiting = threading.Thread(
        target=lambda: results.append(gguf.cached_folder("model", tmp_path / "source", Path.mkdir))
    )
    with FileLock(f"{folder}.lock"):
        waiting.start()
        assert waits.wait(60)
        folder.mkdir()
    waiting.join(60)
    assert results == [folder]
    (only,) = said  # it makes nothing
    assert str(folder) in only
