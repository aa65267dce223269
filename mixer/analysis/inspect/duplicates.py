"""Samples that come more than once: in a stream, in several, or in training and in validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mixer.utils.arrays import Int64Array, UInt64Array

_AT_ONCE = 65_536


@dataclass(frozen=True)
class Part:
    """Samples of a stream by which they are known again.

    Args:
        stream: The stream's name.
        is_validation: Whether they are those that it is evaluated on.
        kind: What the digests are of: `samples`, or the `rows` that a format packs. Only like is compared with like.
        digests: uint64 `[num_samples]`: a digest of each.
        is_whole: Whether all samples are among them.
    """

    stream: str
    is_validation: bool
    kind: str
    digests: UInt64Array
    is_whole: bool


@dataclass(frozen=True)
class Overlap:
    """How many samples of a part come in another one, or more than once in itself.

    Args:
        stream: The part whose samples are counted, as `is_validation` says.
        is_validation: Whether they are validation samples.
        other: The stream whose training samples are compared; the same name for the part itself.
        kind: What is compared: `samples` or `rows`.
        num_samples: How many of them are there too; of a part itself: how many repeat an earlier one.
        num_looked_at: Out of how many.
        is_whole: Whether both parts were looked at as a whole; else there may be more.
    """

    stream: str
    is_validation: bool
    other: str
    kind: str
    num_samples: int
    num_looked_at: int
    is_whole: bool

    @property
    def share(self) -> float:
        """The share of the samples that were looked at."""
        return self.num_samples / self.num_looked_at

    @property
    def is_within(self) -> bool:
        """Whether a part is compared with itself."""
        return self.stream == self.other and not self.is_validation


def find_overlaps(parts: Sequence[Part]) -> list[Overlap]:
    """Compares every part with itself and with every part that is trained on.

    Args:
        parts: The parts.

    Returns:
        What overlaps: each training part in itself and in others, each validation part in those that are trained on.
    """
    kept = [part for part in parts if len(part.digests)]
    counts = _samples_in(kept)
    overlaps = []
    for row, part in enumerate(kept):
        for column, other in enumerate(kept):
            if other.is_validation or not counts[row, column]:
                continue
            overlaps.append(
                Overlap(
                    part.stream,
                    part.is_validation,
                    other.stream,
                    part.kind,
                    int(counts[row, column]),
                    len(part.digests),
                    part.is_whole and other.is_whole,
                )
            )
    return overlaps


def _samples_in(parts: Sequence[Part]) -> Int64Array:
    """Gives `[num_parts, num_parts]`: how many samples of the first are in the second; on the diagonal, repetitions."""
    counted = np.zeros((len(parts), len(parts)), np.int64)
    for kind in {part.kind for part in parts}:
        places = [place for place, part in enumerate(parts) if part.kind == kind]
        contents, owners = _gathered([parts[place].digests for place in places])
        for start, stop in _pieces(contents):
            numbers = np.unique(contents[start:stop], return_inverse=True)[1]
            times = np.zeros((numbers.max() + 1, len(places)), np.int64)
            np.add.at(times, (numbers, owners[start:stop]), 1)
            inside = times.T @ (times > 0)
            np.fill_diagonal(inside, (times - (times > 0)).sum(axis=0))
            counted[np.ix_(places, places)] += inside
    return counted


def _gathered(digests: Sequence[UInt64Array]) -> tuple[UInt64Array, Int64Array]:
    """Gives the digests that come more than once, sorted, and the part that each is of."""
    contents = np.concatenate(digests)
    owners = np.repeat(np.arange(len(digests)), [len(part) for part in digests])
    order = np.argsort(contents, kind="stable")
    contents, owners = contents[order], owners[order]
    is_next_same = contents[1:] == contents[:-1]
    comes_again = np.concatenate([is_next_same, [False]]) | np.concatenate([[False], is_next_same])
    return contents[comes_again], owners[comes_again]


def _pieces(contents: UInt64Array) -> list[tuple[int, int]]:
    """Cuts sorted digests into pieces of bounded length, none of which parts equal ones."""
    starts = np.flatnonzero(np.concatenate([[True], contents[1:] != contents[:-1]])) if len(contents) else np.zeros(0)
    edges = [0, *(int(starts[place]) for place in range(_AT_ONCE, len(starts), _AT_ONCE)), len(contents)]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]
