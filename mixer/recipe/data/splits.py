"""A split by its name, slices of it, and several of them together: `train`, `train[:10%]`, `train+test`."""

from collections.abc import Callable, Collection
from typing import Any

import datasets

# Numbers of rows that a split may have, for what is true of its slices however many it has.
_LENGTHS = [round(100 * 1.3**power) for power in range(60)]


def take_split(split: str, known: Collection[str], load: Callable[[str], Any], called: str, streaming: bool) -> Any:
    """Gives what a split's name says.

    Args:
        split: The name, as `datasets.load_dataset` takes it.
        known: The splits that there are.
        load: Gives one of them.
        called: What asks for it, for errors.
        streaming: Whether rows are read as they are asked for, so that there are no slices.

    Returns:
        The data set.

    Raises:
        ValueError: If there is no such split, or it cannot be read as one.
    """
    names = check_slices(split, called, streaming)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{called}: there is no split {unknown[0]!r}; there are {list(known)}.")
    if names == [split]:
        return load(split)
    parts = {name: load(name) for name in names}
    lengths = {name: len(part) for name, part in parts.items()}
    try:
        slices = datasets.ReadInstruction.from_spec(split).to_absolute(lengths)
    except (ValueError, AssertionError) as error:
        raise ValueError(f"{called}: {split!r} cannot be read as a split or its slice ({error}).") from None
    taken = [parts[piece.splitname].select(range(piece.from_, piece.to)) for piece in slices]
    return taken[0] if len(taken) == 1 else datasets.concatenate_datasets(taken)


def check_disjoint(split: str, validation_split: str, called: str) -> None:
    """Refuses a split for validation that shares rows with the one for training, as far as the names tell.

    Args:
        split: What is trained on.
        validation_split: What is evaluated on.
        called: What asks for them, for errors.

    Raises:
        ValueError: If they share rows, however many there are.
    """
    shares = [_share_rows(split, validation_split, length) for length in _LENGTHS]
    if True in shares and False not in shares:
        raise ValueError(
            f"{called}: split {split!r} and validation_split {validation_split!r} share rows, so that what is "
            "evaluated on would be trained on: slice both (split: 'train[10%:]', validation_split: 'train[:10%]'), or "
            "give the stream validation: 0.1 in place of validation_split."
        )


def _share_rows(split: str, other: str, length: int) -> bool | None:
    """Says whether two share rows where each split has so many; `None` where a slice has none."""
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
        one.splitname == two.splitname and max(one.from_, two.from_) < min(one.to, two.to)
        for one in first
        for two in second
    )


def check_slices(split: str, called: str, streaming: bool) -> list[str]:
    """Refuses slices of data that are read as they come.

    Args:
        split: A split's name, slices, several of them.
        called: What asks for it, for errors.
        streaming: Whether rows are read as they are asked for.

    Returns:
        Names of the splits in it.

    Raises:
        ValueError: If it is more than a name where streaming.
    """
    names = [part.partition("[")[0].strip() for part in split.split("+")]
    if streaming and names != [split]:
        raise ValueError(
            f"{called}: {split!r}: slices and sums of splits are for data that are not streamed: name one split, or "
            "set streaming to false."
        )
    return names
