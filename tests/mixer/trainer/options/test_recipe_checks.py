"""What is wrong with a recipe is told before its data are loaded; what is held out and never evaluated is told too."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import TrainingArguments

from mixer import Fixed, LossChange, Stream, Temperature
from mixer.mixture.resolve import check_own_weights
from mixer.mixture.stream import describe
from mixer.recipe.checks import check_evaluation, check_streams
from mixer.recipe.data import DataSource
from mixer.recipe.data.splits import check_disjoint
from mixer.recipe.model import ModelRecipe
from mixer.recipe.recipe import Recipe
from mixer.recipe.streams import Factory, StreamRecipe
from tests.helpers import plain_options

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {"model_type": "llama", "vocab_size": 300, "num_key_value_heads": 2, **SIZES}


def stream(**fields: Any) -> StreamRecipe:
    return StreamRecipe(data=DataSource("nowhere"), **fields)


@pytest.mark.parametrize(
    ("streams", "mixing", "message"),
    [
        ({}, None, "streams: there is none; give at least one"),
        ({"a": stream(), "t": StreamRecipe(weight=3)}, None, r"streams\.t: .* it has neither\. .* are \['a'\]"),
        ({"a": stream(weight=1), "b": stream()}, None, r"to every stream or to none; these have none: \['b'\]"),
        ({"a": stream(), "b": stream()}, {"a": 1, "c": 1}, r"mixing: .* missing: \['b'\], unknown: \['c'\]"),
        ({"a": StreamRecipe(data=DataSource("x", validation_split="train"))}, None, r"streams\.a\.data: .* share rows"),
    ],
)
def test_what_cannot_be_mixed_is_refused(streams: dict[str, StreamRecipe], mixing: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_streams(streams, mixing)


@pytest.mark.parametrize(
    ("split", "other", "are_apart"),
    [
        ("train", "train", False),
        ("train", "train[:10%]", False),
        ("train[:50%]+extra", "test+train[40%:60%]", False),
        ("train[-500:]", "train[-1000:-400]", False),
        ("train[:5000]", "train[4999:6000]", False),
        ("train", "validation", True),
        ("train[10%:]", "train[:10%]", True),
        ("train[:-500]", "train[-500:]", True),
        ("train[1500:]", "train[:20%]", True),  # of 5000 rows they share none
        ("train[what]", "train", True),  # read, and refused, where the data are
    ],
)
def test_splits_that_share_rows_are_refused(split: str, other: str, are_apart: bool) -> None:
    for pair in ((split, other), (other, split)):
        with nullcontext() if are_apart else pytest.raises(ValueError, match=r"share rows.*train\[10%:\]"):
            check_disjoint(*pair, "data")


def test_evaluating_and_what_it_is_on_go_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    off = TrainingArguments(**plain_options(tmp_path, eval_strategy="no"))
    on = TrainingArguments(**plain_options(tmp_path, eval_strategy="steps", eval_steps=1))
    with pytest.raises(ValueError, match=r"no stream has data to evaluate on: .*validation.*data\.validation_split"):
        check_evaluation({"a": stream()}, [], on)
    check_evaluation({"a": stream(validation=2)}, ["a"], on)
    check_evaluation({"a": stream()}, [], off)
    assert "eval_strategy" not in caplog.text
    check_evaluation({"a": stream(validation=2)}, ["a"], off)
    assert "streams.a: validation is given, but training.eval_strategy is 'no'" in caplog.text


def test_rows_of_tokens_of_several_lengths_train_without_labels(tmp_path: Path) -> None:
    rows = [{"input_ids": [5] * (2 + number % 3)} for number in range(8)]
    datasets.Dataset.from_list(rows).to_json(tmp_path / "rows.jsonl")
    training = TrainingArguments(**plain_options(tmp_path / "run", max_steps=2))
    streams = {"a": StreamRecipe(data=DataSource(str(tmp_path / "rows.jsonl")))}
    tokenizer = Factory("tests.mixer.recipe.small_tokenizers.byte_level")
    recipe = Recipe(ModelRecipe(config=LLAMA), streams, training, tokenizer=tokenizer)
    assert recipe.build().train().training_loss > 0
    recipe.tokenizer = None
    with pytest.raises(
        ValueError, match=r"streams\.a: its rows have from 2 to 4 tokens.*give the recipe the tokenizer"
    ):
        recipe.build()


def test_a_folder_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    training = TrainingArguments(**plain_options(tmp_path))
    missing = "models/of/mine"
    told = rf"there is no folder '{Path(missing).absolute()}', and .* org/name \(.*HF_HUB_OFFLINE"
    with pytest.raises(ValueError, match=f"tokenizer: {told}"):
        Recipe(ModelRecipe(), {"a": stream()}, training, tokenizer=missing).build()
    with pytest.raises(FileNotFoundError, match=told):
        ModelRecipe(name_or_path=missing).build()


@pytest.mark.parametrize(
    ("policy", "weights", "is_told"),
    [
        (Temperature(), (1.0, 3.0), True),
        (Fixed([1, 2]), (1.0, 3.0), True),
        (Fixed(), (1.0, 3.0), False),
        (Fixed([2, 6]), (1.0, 3.0), False),
        (LossChange(), (1.0, 3.0), False),
        (Temperature(), (None, None), False),
    ],
)
def test_weights_that_a_policy_does_not_use_are_told(
    policy: Any, weights: tuple[float | None, ...], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    mixture = describe([Stream(name, range(10), weight=own) for name, own in zip("ab", weights, strict=True)])
    first = policy.start(mixture).weights
    check_own_weights(policy, mixture, dict(zip("ab", (first / first.sum()).tolist(), strict=True)))
    message = f"The streams' weights {{'a': 0.25, 'b': 0.75}} are ignored by mixing={policy.name}"
    assert (message in caplog.text) is is_told
