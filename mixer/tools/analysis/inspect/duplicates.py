"""Duplicates: in a stream, across streams, and between training and evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from mixer.utils.arrays import UInt64Array


@dataclass(frozen=True)
class Part:
    """The samples of a stream, or of an evaluation set.

    Args:
        stream: Its name.
        is_validation: Whether they are for evaluation.
        kind: `samples`, or the `rows` that a format packs. Only parts of one kind are compared.
        contents: A digest of each, uint64 `[num_samples]`.
        is_whole: Whether all samples were read.
    """

    stream: str
    is_validation: bool
    kind: str
    contents: UInt64Array
    is_whole: bool


@dataclass(frozen=True)
class Overlap:
    """The duplicates of a part in training data.

    Args:
        stream: The stream of the part.
        is_validation: Whether the part is for evaluation.
        other: The stream that is trained on.
        kind: `samples` or `rows`.
        num_samples: Number of samples of the part that the other stream has too; within one part, of repetitions.
        num_read: Number of samples of the part that were read.
        share: `num_samples` by `num_read`.
        is_whole: Whether both were read whole; otherwise there may be more duplicates.
    """

    stream: str
    is_validation: bool
    other: str
    kind: str
    num_samples: int
    num_read: int
    share: float
    is_whole: bool

    @property
    def is_within(self) -> bool:
        """Whether a part is compared with itself."""
        return self.stream == self.other and not self.is_validation


def find_overlaps(parts: Sequence[Part]) -> list[Overlap]:
    """Compares each part with itself and with each part that is trained on.

    Args:
        parts: The parts.

    Returns:
        The overlaps, without empty ones.
    """
    parts = [part for part in parts if len(part.contents)]
    frames = [pd.DataFrame({"kind": part.kind, "digest": part.contents, "part": i}) for i, part in enumerate(parts)]
    if not frames:
        return []
    times = pd.concat(frames).groupby(["kind", "digest", "part"]).size().rename("times").reset_index()
    times = times[times.groupby(["kind", "digest"])["times"].transform("sum") > 1]
    pairs = times.merge(times, on=["kind", "digest"])
    pairs["times_x"] -= pairs["part_x"] == pairs["part_y"]  # of equal samples of one part all but one are repetitions
    counts = pairs.groupby(["part_x", "part_y"])["times_x"].sum()
    overlaps = []
    for row, column, number in counts[counts > 0].reset_index().itertuples(index=False):
        part, other, num_samples = parts[row], parts[column], int(number)
        if not other.is_validation:
            sizes = num_samples, len(part.contents), num_samples / len(part.contents)
            is_whole = part.is_whole and other.is_whole
            overlaps.append(Overlap(part.stream, part.is_validation, other.stream, part.kind, *sizes, is_whole))
    return overlaps
