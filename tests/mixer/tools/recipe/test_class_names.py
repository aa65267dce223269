from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import AutoConfig

from mixer import Head
from mixer.models.multi_task import MultiTaskConfig
from mixer.tools.recipe.data import DataSource, Labelled, Text
from mixer.tools.recipe.model import note_class_names
from mixer.tools.recipe.streams import StreamRecipe
from tests.helpers import build_model
from tests.mixer.forms import multi_task
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.refusals import refused

MOODS = ("bad", "fine", "good")


def _note(model: Any, heads: dict[str, str], names: dict[str, Any], **sets: Any) -> None:
    streams = {("streams", stream): own for stream, own in names.items()}
    note_class_names(model, heads, {**streams, **{("evaluation", name): own for name, own in sets.items()}})


def test_one_head_knows_what_its_classes_are_called_after_it_was_saved(tmp_path: Path) -> None:
    model: Any = build_model("bert-classifier")
    for other in ({}, {"a": ["no", "yes"]}):  # those of another number of classes are not its own
        _note(model, {"a": "a"}, other)
        assert model.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    _note(model, {"a": "a", "b": "b", "c": "c"}, {"a": MOODS, "c": MOODS})
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.id2label == dict(enumerate(MOODS))
    assert config.label2id == {"bad": 0, "fine": 1, "good": 2}


def test_names_by_head_are_kept_with_a_model_of_several(tmp_path: Path) -> None:
    model = multi_task({"mood": Head(3), "stars": Head(1, kind="regression"), "topic": Head(2)})
    heads = {"books": "mood", "films": "mood", "news": "topic", "stars": "stars"}
    _note(model, heads, {"books": MOODS, "films": MOODS, "news": ["sports", "war"]})
    model.save_pretrained(tmp_path)
    saved = MultiTaskConfig.from_pretrained(tmp_path)
    assert saved.class_names == {"mood": list(MOODS), "topic": ["sports", "war"]}
    assert saved.head_names == ["mood", "stars", "topic"]


def test_streams_of_one_head_that_number_their_classes_differently_are_refused() -> None:
    names = {"books": ["bad", "good"], "films": MOODS}
    for model, heads in ((build_model("bert-classifier"), ("books", "films")), (multi_task(), ("topic", "topic"))):
        with refused():
            _note(model, dict(zip(names, heads, strict=True)), names)
    _note(multi_task(), {"books": "topic", "films": "tags"}, names)
    with refused():
        _note(build_model("bert-classifier"), {"books": "books"}, {"books": MOODS}, films=MOODS[1:])


def test_names_come_of_words_or_of_the_data() -> None:
    words = datasets.Dataset.from_dict({"text": ["x", "y"], "label": ["sad", "glad"]})
    assert Labelled().fitted(words, None).class_names(words) == ["glad", "sad"]
    assert Labelled(labels=["sad", "glad"]).class_names(words) == ["sad", "glad"]
    numbers = words.remove_columns("label").add_column("label", [0, 1])
    assert Labelled().fitted(numbers, None).class_names(numbers) == ()
    known = numbers.cast_column("label", datasets.ClassLabel(names=["low", "high"]))
    assert Labelled().fitted(known, None).class_names(known) == ["low", "high"]
    assert Text(max_length=8).class_names(words) is None


def test_numbers_without_names_beside_names_are_refused() -> None:
    for names, found in (({"a": ["bad", "good"], "b": ()}, []), ({"a": (), "b": ["bad", "good"]}, ["bad", "good"])):
        with refused(stream="b", found=found):
            _note(build_model("bert-classifier"), {}, names)
        _note(multi_task(), {"a": "topic", "b": "tags"}, names)
    with refused():
        _note(build_model("bert-classifier"), {}, {"a": MOODS}, gold=())
    _note(build_model("bert-classifier"), {}, {"a": (), "b": ()}, gold=())


@pytest.mark.parametrize(
    ("train", "held", "labels", "expected"),
    [
        (["bad", "good"], ["1", "2"], None, None),
        (["bad", "good"], ["1", "0"], None, None),
        (["1", "2"], ["bad", "good"], None, None),
        (["bad", "good"], ["1", "0"], ["bad", "good"], [1, 0]),
        (["bad", "good"], ["good"], None, [1]),
        (["1", "2"], ["2", "1"], None, [2, 1]),
        (["1", "2"], ["2", "1"], ["1", "2"], [1, 0]),
    ],
)
def test_labels_for_evaluation_are_those_of_training(
    train: list[str], held: list[str], labels: list[str] | None, expected: list[int] | None, tmp_path: Path
) -> None:
    for split, values in (("train", train), ("test", held)):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "".join(f"a,{value}\n" for value in values))
    stream = StreamRecipe(data=DataSource(str(tmp_path), validation_split="test"), format=Labelled(labels=labels))
    if expected is None:
        with refused("streams.s"):
            stream.build("s", byte_level(), "sequence-classification")
    else:
        built = stream.build("s", byte_level(), "sequence-classification")
        assert list(built.evaluation["labels"]) == expected
