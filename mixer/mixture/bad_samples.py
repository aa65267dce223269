"""Samples that cannot be loaded: whether they end the run or are left out, and how many may be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mixer.utils.arrays import Int64Array

OnSampleError = Literal["raise", "skip"]

# Fewer samples of a stream never end a run: the first of a hundred may be broken, and be the only one.
LEAST_SKIPPED = 10


@dataclass(frozen=True)
class BrokenSample:
    """Stands where a sample could not be loaded.

    Args:
        message: What happened to which sample.
    """

    message: str


def first_whole(samples: Iterable[Any]) -> Any:
    """Finds a sample that is not broken.

    Args:
        samples: The samples.

    Returns:
        The first of them, or `None`.
    """
    return next((sample for sample in samples if not isinstance(sample, BrokenSample)), None)


class TooManyBrokenError(RuntimeError):
    """More of a stream's samples are broken than may be skipped."""


@dataclass(frozen=True)
class Skipping:
    """What becomes of samples that cannot be loaded.

    A skipped sample has no stand-in: its step is smaller by it. So every stream goes on where the plan says, on all
    ranks alike, and nothing comes twice.

    Args:
        stream_ids: The streams whose broken samples are left out; those of others end the run.
        max_share: Largest share of a stream's samples that may be left out.
    """

    stream_ids: frozenset[int] = frozenset()
    max_share: float = 0.1

    def __bool__(self) -> bool:
        return bool(self.stream_ids)

    def check(self, names: Sequence[str], skipped: Int64Array, seen: Int64Array, broken: Sequence[str] = ()) -> None:
        """Refuses to go on with a stream of which too much is broken.

        Args:
            names: Names of the streams.
            skipped: int64 `[num_streams]`: samples left out so far.
            seen: int64 `[num_streams]`: samples drawn so far.
            broken: What happened to those of this rank just now.

        Raises:
            TooManyBrokenError: If more than `max_share` of a stream's samples, and at least `LEAST_SKIPPED`, are left
                out; the streams are named.
        """
        if not skipped.any():
            return
        is_over = (skipped >= LEAST_SKIPPED) & (skipped > self.max_share * seen)
        over = [f"{skipped[k]} of {seen[k]} of stream {names[k]!r}" for k in np.flatnonzero(is_over).tolist()]
        if over:
            last = f" The last one here: {broken[-1]}" if broken else ""
            raise TooManyBrokenError(
                f"Too many samples could not be loaded: {' and '.join(over)}, which is more than "
                f"max_skipped_share={self.max_share}. The log says what happened to the first of them.{last}"
            )


def new_skipping(on_sample_error: str, max_share: float, by_stream: Sequence[str | None]) -> Skipping:
    """Makes sense of what the user said of all streams and of single ones.

    Args:
        on_sample_error: What is done for streams that say nothing.
        max_share: Largest share of a stream's samples that may be left out.
        by_stream: What each stream says.

    Returns:
        What becomes of broken samples.

    Raises:
        ValueError: If a value is none of the choices.
    """
    check_choice(on_sample_error, "on_sample_error")
    is_number = isinstance(max_share, (int, float)) and not isinstance(max_share, bool)
    if not (is_number and 0.0 <= max_share <= 1.0):
        raise ValueError(f"max_skipped_share must be a share from 0 to 1, got {max_share!r}.")
    chosen = [on_sample_error if own is None else own for own in by_stream]
    return Skipping(frozenset(k for k, choice in enumerate(chosen) if choice == "skip"), float(max_share))


def check_choice(value: object, where: str) -> None:
    """Refuses what is no way of treating broken samples.

    Args:
        value: What the user gave.
        where: What to call it in an error.

    Raises:
        ValueError: If it is none of the choices.
    """
    if value not in ("raise", "skip"):
        raise ValueError(f"{where} must be 'raise' or 'skip', got {value!r}.")
