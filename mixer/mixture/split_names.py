"""Streams that look like the splits of one data set, by their names."""

import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

# What the splits of data sets on the Hub are called, perhaps with a part before or after: validation_matched, test_sft.
_WORDS = {
    "train": "train training trainset",
    "validation": "validation valid val dev devset development eval evaluation heldout holdout",
    "test": "test testing testset",
}
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of names such as test_sft, validation-00 and testA


class _Split(NamedTuple):
    name: str
    kind: str
    rest: frozenset[str]


def find_held_out(names: Sequence[str]) -> list[str]:
    """Finds streams that look like held-out splits of a data set of which another stream is a split, too.

    Two names are of one data set if what they have beside the word for the split is the same, or more in one of them:
    train and validation_matched, train_sft and test_sft, but not train_delays and test_of_time.

    Args:
        names: The names of the streams.

    Returns:
        The names of held-out splits; empty if there are none.
    """
    splits = [split for name in names if (split := _read(name)) is not None]
    if all(split.kind == "train" for split in splits):
        return []
    held_out = {
        split.name
        for pair in combinations(splits, 2)
        if _are_of_one_data_set(*pair)
        for split in pair
        if split.kind != "train"
    }
    return [name for name in names if name in held_out]


def is_held_out(name: str) -> bool:
    """Whether a name is that of a split that data sets hold out."""
    split = _read(name)
    return split is not None and split.kind != "train"


def _read(name: str) -> _Split | None:
    """Reads a name as that of a split: its first or last word says which."""
    words = [word.lower() for word in _PARTS.findall(re.sub("held.out", "heldout", name, flags=re.IGNORECASE))]
    place = next((place for place in (0, -1) if words and words[place] in _KINDS), None)
    return None if place is None else _Split(name, _KINDS[words.pop(place)], frozenset(words))


def _are_of_one_data_set(one: _Split, other: _Split) -> bool:
    if one.kind == other.kind:
        return one.kind != "train" and not one.rest and not other.rest
    return one.rest <= other.rest or other.rest <= one.rest
