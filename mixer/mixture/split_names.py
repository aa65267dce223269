"""Streams that look like the splits of one data set, and evaluation sets that are trained on."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

# What the splits of data sets on the Hub are called, perhaps with a part before or after: validation_matched, test_sft.
_WORDS = {
    "train": "train training trainset",
    "validation": "validation valid val dev devset development eval evaluation heldout holdout",
    "test": "test testing testset",
}
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_MOST_COMPARED, _MOST_NAMED = 100, 5  # rows, and pairs of an evaluation set and a stream
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


def have_same_rows(one: Any, other: Any) -> bool:
    """Whether two data sets are known to have the same rows: one object, one fingerprint, or the same first rows.

    Args:
        one: A data set.
        other: Another.
    """
    if one is other:
        return True
    fingerprints = [getattr(dataset, "_fingerprint", None) for dataset in (one, other)]
    if None in fingerprints or fingerprints[0] == fingerprints[1]:
        return fingerprints[0] is not None and fingerprints[0] == fingerprints[1]
    if not hasattr(one, "__len__") or not hasattr(other, "__len__") or len(one) != len(other):
        return False
    if one.column_names != other.column_names:
        return False
    first, second = (dataset.with_format("arrow")[:_MOST_COMPARED] for dataset in (one, other))
    return bool(first.equals(second))


def trained_on(streams: Mapping[str, Any], eval_dataset: Any) -> str | None:
    """Says which evaluation sets have the rows of a stream.

    Args:
        streams: Data sets of the streams by name.
        eval_dataset: The trainer's argument.

    Returns:
        A sentence; `None` if none is known to.
    """
    is_several = isinstance(eval_dataset, Mapping)
    sets = eval_dataset if is_several else {"": eval_dataset}
    same = [
        f"eval_dataset[{name!r}] has those of {stream!r}" if is_several else f"eval_dataset has those of {stream!r}"
        for name, own in sets.items()
        for stream, dataset in streams.items()
        if own is not None and have_same_rows(own, dataset)
    ]
    if not same:
        return None
    more = f" and {len(same) - _MOST_NAMED} more" if len(same) > _MOST_NAMED else ""
    told = ", ".join(same[:_MOST_NAMED])
    return f"Evaluation sets have the rows of streams, so evaluations are on training data: {told}{more}."
