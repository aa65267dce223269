"""What a simulated run comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import FloatArray, Int64Array


@dataclass(frozen=True)
class StreamPlan:
    """What a stream gives in a simulated run.

    Args:
        name: Its name.
        samples: Its samples.
        share: Of the samples of all streams.
        num_samples: Size of its data set; 0 where it is not known.
        coverage: Share of its data set that is seen; NaN where its size is not known.
        passes: Passes over its data set; likewise.
        tokens: Its tokens.
        first_step: Step with its first sample, from 1; 0 if there is none.
        first_progress: Share of the run that was done before that step; NaN likewise.
        last_step: Step with its last sample; 0 likewise.
        last_progress: Share of the run that was done after that step; NaN likewise.
        runs_out: Whether it had no sample left before the run's end.
    """

    name: str
    samples: int
    share: float
    num_samples: int
    coverage: float
    passes: float
    tokens: int
    first_step: int
    first_progress: float
    last_step: int
    last_progress: float
    runs_out: bool


@dataclass(frozen=True)
class Simulated:
    """A run that was planned.

    Args:
        num_ranks: Number of processes.
        streams: What each stream gives.
        steps: Number of steps.
        samples: Samples that count in the clock.
        tokens: Tokens that count in the clock.
        epochs: Epochs of the mixture.
        progress: Share of the budget that is done at the end; below 1 where the streams were exhausted.
        counts: int64 `[steps, num_streams]`: samples of each step.
        weights: `[steps, num_streams]`: the shares that they were apportioned by.
        batch_sizes: int64 `[steps]`: samples that were asked for.
        positions: `[steps]`: progress after each step.
        learning_rates: `[steps]`: planned learning rates; NaN where they follow a metric.
        planned_steps: Steps for which the learning rate is laid out.
        estimated_tokens: Names of the streams whose tokens are estimated by some of their samples.
        state_bytes: Size of the controller's state in a checkpoint, at the end.
        array_bytes: Size of the controller's arrays in memory, at the end.
        buffer_bytes: Size of the arrays of each replay buffer, by name.
        source: What was observed, in a sentence.
        warnings: Sentences.
        seconds: Time that planning took.
    """

    num_ranks: int
    streams: Sequence[StreamPlan]
    steps: int
    samples: int
    tokens: int
    epochs: float
    progress: float
    counts: Int64Array
    weights: FloatArray
    batch_sizes: Int64Array
    positions: FloatArray
    learning_rates: FloatArray
    planned_steps: int
    estimated_tokens: Sequence[str]
    state_bytes: int
    array_bytes: int
    buffer_bytes: Mapping[str, int]
    source: str
    warnings: Sequence[str]
    seconds: float

    def mixture(self, every: float) -> list[tuple[int, float, FloatArray, float]]:
        """Gives the realised mixture in parts of the run.

        Args:
            every: Share of the run that a part has, in (0, 1].

        Returns:
            For each part the last step, the progress after it, `[num_streams]` shares of its samples, and the mean
            batch size.

        Raises:
            ValueError: If the share is outside (0, 1].
        """
        check_every(every)
        part_of = np.ceil(self.positions / every - 1e-9).astype(np.int64)
        ends = [int(end) for end in np.flatnonzero(np.diff(part_of, append=part_of[-1:] + 1))]
        parts, start = [], 0
        for end in ends:
            counts = self.counts[start : end + 1].sum(axis=0)
            mean = float(self.batch_sizes[start : end + 1].mean())
            parts.append((end + 1, float(self.positions[end]), counts / counts.sum(), mean))
            start = end + 1
        return parts

    def summary(self, every: float) -> dict[str, Any]:
        """Gives what the run comes to as plain data.

        Args:
            every: See `mixture`.

        Returns:
            What `print_json` writes.
        """
        arrays = ("counts", "weights", "positions", "batch_sizes", "learning_rates")
        names = [stream.name for stream in self.streams]  # any text, so in a mapping of their own
        return {
            **{name: value for name, value in vars(self).items() if name not in arrays},
            "streams": [vars(stream) for stream in self.streams],
            "batch_size": _ends(self.batch_sizes),
            "learning_rate": _ends(self.learning_rates),
            "mixture": [
                {
                    "step": step,
                    "progress": progress,
                    "mean_batch_size": size,
                    "shares": dict(zip(names, shares, strict=True)),
                }
                for step, progress, shares, size in self.mixture(every)
            ],
        }


def check_every(every: float) -> None:
    """Refuses what is no part of a run.

    Args:
        every: A share of it.

    Raises:
        ValueError: If it is outside (0, 1].
    """
    if not 0.0 < every <= 1.0:
        raise ValueError(f"every must be a share of the run above 0 and at most 1, got {every}.")


def _ends(values: NDArray[Any]) -> dict[str, float | int]:
    return {"first": values[0], "last": values[-1], "least": values.min(), "greatest": values.max()}
