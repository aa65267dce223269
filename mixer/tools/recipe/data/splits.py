"""Splits by name, slices and sums of splits: `train`, `train[:10%]`, `train+test`."""

from collections.abc import Callable, Collection
from typing import Any

import datasets

from mixer.tools.recipe.data.reading import Reading
from mixer.utils.errors import wrong_value

# Sizes of splits for which overlapping slices are tested, since the real ones are not known yet.
_LENGTHS = [round(100 * 1.3**power) for power in range(60)]


def take_split(split: str, known: Collection[str], load: Callable[[str], Any], reading: Reading) -> Any:
    """Loads a split, a slice or a sum of splits.

    Args:
        split: The name, as for `datasets.load_dataset`.
        known: Names of the existing splits.
        load: Loads one of them.
        reading: How to read rows; while streaming, slices are not possible.

    Raises:
        InvalidValueError: If there is no such split, or the name cannot be read as one.
    """
    names = check_slices(split, reading)
    unknown = [name for name in names if name not in known]
    if unknown:
        text = f": there is no split {unknown[0]!r}; there are {list(known)}."
        raise wrong_value("split", text, found=unknown[0])
    if names == [split]:
        return load(split)
    parts = {name: load(name) for name in names}
    lengths = {name: len(part) for name, part in parts.items()}
    try:
        slices = datasets.ReadInstruction.from_spec(split).to_absolute(lengths)
    except (ValueError, AssertionError) as error:
        raise wrong_value("split", f"{split!r} is no split and no slice ({error}).", found=split) from None
    rows = [parts[piece.splitname].select(range(piece.from_, piece.to)) for piece in slices]
    return rows[0] if len(rows) == 1 else datasets.concatenate_datasets(rows)


def check_disjoint(split: str, validation_split: str) -> None:
    """Refuses a validation split that shares rows with the training split, whatever their sizes.

    Args:
        split: The split to train on.
        validation_split: The split to evaluate on.

    Raises:
        InvalidValueError: If they share rows.
    """
    shares = [_share_rows(split, validation_split, length) for length in _LENGTHS]
    if True in shares and False not in shares:
        raise wrong_value(
            "validation_split",
            f"{validation_split!r} shares rows with the split {split!r}, so the evaluation would be on training data: "
            "slice both (split: 'train[10%:]', validation_split: 'train[:10%]'), or give the stream validation: 0.1 "
            "in place of validation_split.",
            found=validation_split,
        )


def _share_rows(split: str, other: str, length: int) -> bool | None:
    """Returns whether two splits share rows if each has `length` rows; `None` if a slice is empty."""
    names = {part.partition("[")[0].strip() for part in f"{split}+{other}".split("+")}
    try:
        first, second = (
            datasets.ReadInstruction.from_spec(spec).to_absolute(dict.fromkeys(names, length))
            for spec in (split, other)
        )
    except (ValueError, AssertionError):
        return None
    if any(piece.from_ >= piece.to for piece in (*first, *second)):
        return None
    return any(
        piece.splitname == two.splitname and max(piece.from_, two.from_) < min(piece.to, two.to)
        for piece in first
        for two in second
    )


def check_slices(split: str, reading: Reading) -> list[str]:
    """Refuses slices and sums of streamed data, and lists the splits in a name.

    Args:
        split: Name of a split, slice or sum.
        reading: How to read rows.

    Raises:
        InvalidValueError: If it is more than a name while streaming.
    """
    names = [part.partition("[")[0].strip() for part in split.split("+")]
    if reading.streaming and names != [split]:
        text = f"{split!r}: streamed data have no slices or sums of splits: name one split, or set streaming to false."
        raise wrong_value("split", text, found=split)
    return names
