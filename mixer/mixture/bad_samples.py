"""Samples that cannot be loaded: whether to fail or skip them, and how many may be skipped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mixer.utils.arrays import Int64Array

OnSampleError = Literal["raise", "skip"]

# Fewer broken samples never end a run: the first sample may be the only broken one.
LEAST_SKIPPED = 10


@dataclass(frozen=True)
class BrokenSample:
    """Placeholder for a sample that could not be loaded.

    Args:
        message: Error message with the sample's stream and index.
    """

    message: str


def first_whole(samples: Iterable[Any]) -> Any:
    """Returns the first sample that is not broken, or `None`."""
    return next((sample for sample in samples if not isinstance(sample, BrokenSample)), None)


class TooManyBrokenError(RuntimeError):
    """More samples of a stream are broken than may be skipped."""


@dataclass(frozen=True)
class Skipping:
    """Treatment of samples that cannot be loaded.

    A skipped sample is not replaced: its step is smaller. So every stream follows its plan, on all ranks alike, and no
    sample repeats.

    Args:
        stream_ids: Streams whose broken samples are skipped; those of others end the run.
        max_share: Maximum fraction of a stream's samples that may be skipped.
    """

    stream_ids: frozenset[int] = frozenset()
    max_share: float = 0.1

    def __bool__(self) -> bool:
        return bool(self.stream_ids)

    def check(self, names: Sequence[str], skipped: Int64Array, seen: Int64Array, broken: Sequence[str] = ()) -> None:
        """Refuses to continue if too many samples of a stream are broken.

        Args:
            names: Stream names.
            skipped: int64 `[num_streams]`: samples skipped so far.
            seen: int64 `[num_streams]`: samples drawn so far.
            broken: Messages of this rank's latest broken samples.

        Raises:
            TooManyBrokenError: If more than `max_share` of a stream's samples, and at least `LEAST_SKIPPED`, are
                skipped.
        """
        if not skipped.any():
            return
        is_over = (skipped >= LEAST_SKIPPED) & (skipped > self.max_share * seen)
        over = [f"{skipped[k]} of {seen[k]} of stream {names[k]!r}" for k in np.flatnonzero(is_over).tolist()]
        if over:
            last = f" The last one on this rank: {broken[-1]}" if broken else ""
            raise TooManyBrokenError(
                f"Too many samples could not be loaded: {' and '.join(over)}, which is more than "
                f"max_skipped_share={self.max_share}. The log shows the first errors.{last}"
            )
