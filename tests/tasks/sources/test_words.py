import pickle
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tasks.sequences import by_column
from tasks.sources import Arrays, Splits, Words, words
from tests.refusals import refused
from tests.tasks.data import assert_columns_are_samples


def table(texts: list[Any], **columns: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": texts, "label": [n % 2 for n in range(len(texts))], **columns})


def ids(made: Words) -> Any:
    return made.read_columns(np.arange(len(made)))["input_ids"].tolist()


def vocabulary(splits: Splits) -> list[str]:
    known = splits.train.tokenizer.get_vocab()
    return sorted(known, key=known.get)


TRAIN = ["Pay my bill", "pay the bill, now", "the weather"]
GOOD = Splits(table(TRAIN), table(TRAIN))


def test_frequent_words_come_first_and_equal_ones_by_the_alphabet() -> None:
    splits = words(Splits(table(TRAIN), table(["pay NOW please", "", "[PAD] [cls]"])), max_length=6)
    assert vocabulary(splits) == ["[PAD]", "[UNK]", "[CLS]", "bill", "pay", "the", ",", "my", "now", "weather"]
    assert ids(splits.train) == [[2, 4, 7, 3, 0, 0], [2, 4, 5, 3, 6, 8], [2, 5, 9, 0, 0, 0]]
    # Nothing is learned from what is evaluated on, and brackets are like any other text.
    assert ids(splits.evaluation) == [[2, 4, 8, 1, 0, 0], [2, 0, 0, 0, 0, 0], [2, 1, 1, 1, 1, 1]]
    assert splits.evaluation[0]["attention_mask"].tolist() == [1, 1, 1, 1, 0, 0]
    assert splits.train.labels.tolist() == [0, 1, 0]
    assert_columns_are_samples(splits.train)
    assert vocabulary(words(GOOD, vocabulary_size=5))[3:] == ["bill", "pay"]
    assert vocabulary(words(GOOD, min_count=2))[3:] == ["bill", "pay", "the"]


@settings(max_examples=6)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=6), st.integers(2, 9), st.randoms(use_true_random=False))
def test_any_text_has_its_length_and_any_order_the_same_vocabulary(texts: list[str], length: int, random: Any) -> None:
    splits = words(Splits(table(texts), table(texts)), max_length=length)
    everything = splits.train.read_columns(np.arange(len(texts)))
    assert everything["input_ids"].shape == everything["attention_mask"].shape == (len(texts), length)
    assert torch.equal(everything["input_ids"] != 0, everything["attention_mask"] == 1)
    assert not (everything["input_ids"] == 1).any()
    assert (everything["input_ids"][:, 0] == 2).all()
    shuffled = random.sample(texts, len(texts))
    assert ids(words(Splits(table(shuffled), table(texts)), max_length=length).evaluation) == ids(splits.evaluation)


def test_other_columns_make_tasks_in_a_worker_too() -> None:
    made = words(Splits(*[table(TRAIN, domain=["bank", "bank", "talk"], many=[[1], [2], [3]])] * 2))
    sequence = by_column(*made, "domain", scenario="free")
    assert [(task.name, len(task.train)) for task in sequence] == [("bank", 2), ("talk", 1)]
    sent = pickle.loads(pickle.dumps(made.train))  # noqa: S301
    assert (ids(sent), sent.domain.tolist()) == (ids(made.train), ["bank", "bank", "talk"])
    with pytest.raises(AttributeError):
        _ = sent.many


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"text_column": "body"}, "words: train"),
        ({"text_column": "label"}, "text_column"),
        ({"arguments": {"path": "x"}}, "arguments"),
        ({"source": Splits(*[Arrays(np.zeros((2, 3)), [0, 1])] * 2)}, "words: train"),
        ({"source": Splits(GOOD.train, table(["a", None]))}, "words: evaluation"),
    ],
)
def test_what_cannot_be_numbered(arguments: dict[str, Any], option: str) -> None:
    with refused(option):
        words(**{"source": GOOD, **arguments})
