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


def new_skipping(on_sample_error: str, max_share: float, by_stream: Sequence[str | None]) -> Skipping:
    """Combines the settings for all streams and for individual ones.

    Args:
        on_sample_error: Default for streams without their own setting.
        max_share: Maximum fraction of a stream's samples that may be skipped.
        by_stream: Setting of each stream, or `None`.

    Raises:
        ValueError: If a value is invalid.
    """
    check_choice(on_sample_error, "on_sample_error")
    is_number = isinstance(max_share, (int, float)) and not isinstance(max_share, bool)
    if not (is_number and 0.0 <= max_share <= 1.0):
        raise ValueError(f"max_skipped_share must be a share from 0 to 1, got {max_share!r}.")
    chosen = [on_sample_error if own is None else own for own in by_stream]
    return Skipping(frozenset(k for k, choice in enumerate(chosen) if choice == "skip"), float(max_share))


def check_choice(value: object, where: str) -> None:
    """Raises a `ValueError` unless `value` is a valid `on_sample_error`; `where` names it in the error."""
    if value not in ("raise", "skip"):
        raise ValueError(f"{where} must be 'raise' or 'skip', got {value!r}.")
