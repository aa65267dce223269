"""What is wrong with a recipe is told before its data are loaded; streams of a recipe, built from Python."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import TrainingArguments

from mixer import Fixed, Head, LossChange, Stream, Temperature
from mixer.mixture.planner import Planner
from mixer.mixture.resolve import check_own_weights
from mixer.mixture.streams import describe
from mixer.tools.recipe.data import DataSource, Labelled, Prompt, Text, Validation
from mixer.tools.recipe.data.splits import check_disjoint
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.stream_checks import check_evaluation, check_streams
from mixer.tools.recipe.streams import Factory, StreamRecipe
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from tests.helpers import plain_options
from tests.mixer.tools.recipe.small_tokenizers import of_words
from tests.refusals import refused

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {"model_type": "llama", "vocab_size": 300, "num_key_value_heads": 2, **SIZES}


def stream(**fields: Any) -> StreamRecipe:
    return StreamRecipe(data=DataSource("nowhere"), **fields)


@pytest.mark.parametrize(
    ("streams", "option"),
    [
        ({}, "streams"),
        ({"a": stream(weight=1), "b": stream()}, "streams"),
        ({"a": StreamRecipe(data=DataSource("x", validation_split="train"))}, "streams.a.data.validation_split"),
    ],
)
def test_what_cannot_be_mixed_is_refused(streams: dict[str, StreamRecipe], option: str) -> None:
    with refused(option):
        check_streams(streams, None)


def test_weights_of_other_streams_are_refused() -> None:
    with refused("mixing: weights"):
        check_streams({"a": stream(), "b": stream()}, {"a": 1, "c": 1})


def test_a_held_out_split_that_is_trained_on_is_told(caplog: pytest.LogCaptureFixture) -> None:
    splits = {"a": "train+test[:10%]", "b": "validation_matched", "c": "train[:10%]", "d": "unsupervised"}
    check_streams({name: StreamRecipe(data=DataSource("x", split=split)) for name, split in splits.items()}, None)
    assert [record.args for record in caplog.records] == [
        ("a", "data.split", "test"),
        ("b", "data.split", "validation_matched"),
    ]


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
        with nullcontext() if are_apart else refused("validation_split", found=pair[1]):
            check_disjoint(*pair)


def test_evaluating_and_what_it_is_on_go_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    off = TrainingArguments(**plain_options(tmp_path, eval_strategy="no"))
    on = TrainingArguments(**plain_options(tmp_path, eval_strategy="steps", eval_steps=1))
    with refused("training.eval_strategy"):
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
    tokenizer = Factory("tests.mixer.tools.recipe.small_tokenizers.byte_level")
    recipe = Recipe(ModelRecipe(config=LLAMA), streams, training, tokenizer=tokenizer)
    assert recipe.build().train().training_loss > 0
    recipe.tokenizer = None
    with refused("tokenizer"):
        recipe.build()


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
def test_weights_that_a_policy_does_not_use_are_told(policy, weights, is_told, caplog) -> None:
    caplog.set_level("WARNING")
    mixture = describe([Stream(name, range(10), weight=own) for name, own in zip("ab", weights, strict=True)])
    first = policy.start(mixture).weights
    check_own_weights(policy, mixture, dict(zip("ab", (first / first.sum()).tolist(), strict=True)))
    message = f"The streams' weights {{'a': 0.25, 'b': 0.75}} are ignored by mixing={policy.name}"
    assert (message in caplog.text) is is_told


WORDS = "good bad film food so"
BERT = {"model_type": "bert", "vocab_size": 10, **SIZES}
HERE = __name__


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def reviews(num: int = 12) -> datasets.Dataset:
    rows = [{"text": "good film", "label": "yes"}, {"text": "bad food", "label": "no"}]
    return datasets.Dataset.from_list(rows * (num // 2))


def numbered() -> datasets.Dataset:
    texts = ["good film", "bad food", "so good", "so bad", "film"]
    rows = [{"text": texts[number % 5], "label": ["yes", "no"][number % 3 == 0]} for number in range(40)]
    return datasets.Dataset.from_list(rows)


def turned() -> datasets.Dataset:
    return numbered().select(range(39, -1, -1))


def splits() -> dict[str, datasets.Dataset]:
    return {"train": reviews(), "validation": reviews(4)}


def rows_of_tokens() -> list[dict[str, Any]]:
    return [{"input_ids": [1, 2]}]


def build(**fields: Any) -> tuple[Any, Any]:
    return StreamRecipe(**fields).build("s", of_words(WORDS), "sequence-classification")[:2]


def test_what_a_function_gives_takes_a_format_and_a_validation_part() -> None:
    stream, held = build(factory=f"{HERE}.reviews", format=Labelled(), validation=Validation(4, "label"))
    assert (stream.num_samples, sorted(held["labels"])) == (8, [0, 0, 1, 1])
    stream, held = build(factory=f"{HERE}.splits", format=Labelled())
    assert (stream.num_samples, len(held), stream.dataset[0]["labels"]) == (12, 4, 1)
    assert build(factory=f"{HERE}.rows_of_tokens")[0].content is None  # such data sets are not looked into


@pytest.mark.parametrize(
    ("name", "fields", "option", "kind"),
    [
        ("splits", {"validation": 2}, "streams.s.validation", InvalidValueError),
        ("rows_of_tokens", {"validation": 0.5}, "streams.s.validation", InvalidValueError),
        ("rows_of_tokens", {"format": Labelled()}, "data", InvalidTypeError),
        ("reviews", {"format": Labelled(label="mood")}, "mood", InvalidValueError),
        ("reviews", {"format": Labelled(labels=["yes"])}, "label", InvalidValueError),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, fields: dict[str, Any], option: str, kind: Any) -> None:
    with refused(option, kind):
        build(factory=f"{HERE}.{name}", **fields)


def test_words_of_rows_that_are_streamed_need_their_order(tmp_path: Path) -> None:
    reviews().to_json(tmp_path / "rows.jsonl")
    source = DataSource(str(tmp_path / "rows.jsonl"), streaming=True)
    stream, _ = build(data=source, format=Labelled(labels=["yes", "no"]))
    assert [row["labels"] for row in stream.dataset][:2] == [0, 1]
    with refused("label", found="yes"):
        next(iter(build(data=source, format=Labelled())[0].dataset))


QUERY = {"r": 2, "target_modules": ["query"]}
T5 = {"d_model": 16, "d_ff": 16, "num_layers": 1, "d_kv": 8, "num_heads": 2, "decoder_start_token_id": 0}
MODELS = [
    (ModelRecipe("sequence-classification", config={**BERT, "num_labels": 2}, lora=QUERY), Labelled()),
    (ModelRecipe("encoder", config=BERT, heads={"s": Head(2)}, lora=QUERY), Labelled()),
    (ModelRecipe("masked-lm", config=BERT), Text(max_length=8)),
    (ModelRecipe("seq2seq-lm", config={"model_type": "t5", "vocab_size": 10, **T5}), Prompt("{text}", "{label}")),
]


@pytest.mark.parametrize(("model", "chosen"), MODELS)
def test_every_task_trains_on_rows(model: ModelRecipe, chosen: Any, tmp_path: Path) -> None:
    stream = StreamRecipe(factory=f"{HERE}.reviews", format=chosen, validation=4)
    training = TrainingArguments(**plain_options(tmp_path / "run", max_steps=2))
    tokenizer = Factory("tests.mixer.tools.recipe.small_tokenizers.of_words", {"words": WORDS})
    trainer = Recipe(model, {"s": stream}, training, tokenizer=tokenizer).build()
    if model.lora is not None:
        learned = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
        assert all("lora_" in name or "classifier" in name or "heads" in name for name in learned)
        assert {"lora_" in name for name in learned} == {True, False}
    assert trainer.train().training_loss > 0
    assert trainer.evaluate()["eval_s_loss"] > 0


def test_adapters_without_peft_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with refused("lora"):
        ModelRecipe("encoder", config=BERT, heads={"s": Head(2)}, lora={}).build()


@pytest.mark.parametrize(
    "other", [{"validation": Validation(4, seed=1)}, {"format": Labelled(max_length=2)}, {"factory": f"{HERE}.turned"}]
)
def test_a_run_does_not_go_on_with_other_samples_of_the_same_number(other: dict[str, Any]) -> None:
    fields = {"factory": f"{HERE}.numbered", "format": Labelled(), "validation": Validation(4)}
    saved = Planner([build(**fields)[0]], seed=0).state_dict()
    Planner([build(**fields)[0]], seed=0).load_state_dict(saved)
    changed = Planner([build(**{**fields, **other})[0]], seed=0)
    with refused("content", stream="s"):
        changed.load_state_dict(saved)
    changed.load_state_dict(saved, allow_inexact=True)
    del saved["streams"]["s"]["content"]  # as in checkpoints of before
    changed.load_state_dict(saved)


def test_the_content_stays_the_same_wherever_the_data_lie(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        numbered().to_json(tmp_path / f"{name}.jsonl")
        contents.append(build(data=DataSource(str(tmp_path / f"{name}.jsonl")), format=Labelled())[0].content)
    assert contents[0] is not None
    assert contents[0] == contents[1]
