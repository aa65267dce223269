from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

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
