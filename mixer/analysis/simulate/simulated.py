"""A planned run, summed up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.analysis.simulate.parts import Parts
from mixer.mixture.plan import Plan
from mixer.utils.arrays import FloatArray, Int64Array

_MOST_PASSES = 4.0
_LEAST_COVERAGE = 0.1


@dataclass(frozen=True)
class StreamPlan:
    """The part of a stream in a planned run.

    Args:
        name: Its name.
        samples: Its samples.
        share: Its share of the samples of all streams.
        num_samples: Size of its data set; 0 if it is not known.
        coverage: Share of its data set that is seen; NaN if its size is not known.
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
    """A planned run.

    Args:
        num_ranks: Number of processes.
        streams: The part of each stream.
        steps: Number of steps.
        samples: Samples that count in the clock.
        tokens: Tokens that count in the clock.
        epochs: Epochs of the mixture.
        progress: Share of the budget that is done at the end; below 1 if the streams were exhausted.
        counts: int64 `[steps, num_streams]`: samples of each step.
        weights: `[steps, num_streams]`: the shares that gave the counts.
        batch_sizes: int64 `[steps]`: batch sizes before the rest of an epoch cuts them.
        positions: `[steps]`: progress after each step.
        learning_rates: `[steps]`: planned learning rates; NaN if they follow a metric.
        planned_steps: Number of steps of the learning rate's schedule.
        evaluation_steps: Steps after which the run evaluates; 0 for before the first.
        estimated_tokens: Names of the streams whose tokens are estimated from some of their samples.
        source: A sentence on the source of the losses.
        warnings: Sentences.
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
    evaluation_steps: Sequence[int]
    estimated_tokens: Sequence[str]
    source: str
    warnings: Sequence[str]

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
        """Gives the run as plain data for `print_json`, with the mixture in parts (see `mixture`)."""
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
    """Refuses a share of the run outside (0, 1]."""
    if not 0.0 < every <= 1.0:
        raise ValueError(f"every must be a share of the run above 0 and at most 1, got {every}.")


def _ends(values: NDArray[Any]) -> dict[str, float | int]:
    return {"first": values[0], "last": values[-1], "least": values.min(), "greatest": values.max()}


@dataclass
class Columns:
    """Plans, one entry a step, and the steps after which the run evaluates."""

    counts: list[Int64Array] = field(default_factory=list)
    weights: list[FloatArray] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    positions: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    evaluation_steps: list[int] = field(default_factory=list)

    def append(self, plan: Plan, position: float, learning_rate: float) -> None:
        """Adds a plan, the progress after it and its learning rate."""
        self.counts.append(plan.counts)
        self.weights.append(plan.weights)
        self.batch_sizes.append(plan.batch_size)
        self.positions.append(position)
        self.learning_rates.append(learning_rate)


def summed_up(parts: Parts, columns: Columns, estimated: Sequence[str], is_rate_known: bool, source: str) -> Simulated:
    """Sums a run up that is planned to its end.

    Args:
        parts: The objects that planned it.
        columns: Its plans.
        estimated: Names of the streams whose tokens are estimated.
        is_rate_known: Whether its learning rate is known before the run.
        source: A sentence on the source of the losses.

    Returns:
        The sum.
    """
    mixing, num_streams = parts.mixing, len(parts.mixing.names)
    clock, positions = mixing.clock, np.array(columns.positions)
    counts = np.array(columns.counts).reshape(-1, num_streams)
    streams = [_stream_plan(parts, number, counts[:, number], positions) for number in range(num_streams)]
    estimated = [*estimated, *parts.stand_ins]
    warnings = list(_warnings(streams, clock.step, clock.progress))
    if iterable := [stream.name for stream in parts.streams if stream.is_iterable]:
        warnings.append(f"The number of rows in {', '.join(iterable)} is not known: assumed never to run out.")
    if parts.stand_ins:
        warnings.append(f"Entries of the buffers {', '.join(parts.stand_ins)} are planned as if chosen by nothing.")
    if estimated:
        warnings.append(f"Tokens of {', '.join(estimated)} are estimated from some of the samples.")
    if not is_rate_known:
        warnings.append("The learning rate follows a metric: it is not known before the run.")
    return Simulated(
        num_ranks=parts.args.world_size,
        streams=streams,
        steps=clock.step,
        samples=clock.num_samples,
        tokens=clock.num_tokens,
        epochs=clock.epoch,
        progress=clock.progress,
        counts=counts,
        weights=np.array(columns.weights).reshape(-1, num_streams),
        batch_sizes=np.array(columns.batch_sizes, dtype=np.int64),
        positions=positions,
        learning_rates=np.array(columns.learning_rates),
        planned_steps=clock.planned_steps,
        evaluation_steps=columns.evaluation_steps,
        estimated_tokens=estimated,
        source=source,
        warnings=warnings,
    )


def _stream_plan(parts: Parts, number: int, counts: Int64Array, positions: FloatArray) -> StreamPlan:
    mixing, stream = parts.mixing, parts.streams[number]
    clock, samples = mixing.clock, int(mixing.seen[number])
    steps = np.flatnonzero(counts)
    has_samples = len(steps) > 0
    stays = stream.leaves_at == 1.0 or clock.progress < stream.leaves_at
    is_active = bool(mixing.planner.active(clock.progress)[number])
    passes = float(mixing.stream_epochs[number])
    before = float(positions[steps[0] - 1]) if has_samples and steps[0] else 0.0
    return StreamPlan(
        name=stream.name,
        samples=samples,
        share=samples / max(int(mixing.seen.sum()), 1),
        num_samples=stream.num_samples,
        coverage=min(1.0, passes),
        passes=passes,
        tokens=int(mixing.num_tokens[number]),
        first_step=int(steps[0]) + 1 if has_samples else 0,
        first_progress=before if has_samples else np.nan,
        last_step=int(steps[-1]) + 1 if has_samples else 0,
        last_progress=float(positions[steps[-1]]) if has_samples else np.nan,
        runs_out=stays and not is_active and not stream.is_memory and has_samples and steps[-1] + 1 < clock.step,
    )


def _warnings(streams: Sequence[StreamPlan], steps: int, progress: float) -> Iterator[str]:
    if progress < 1.0:
        yield f"The budget is not reached: no stream has a sample left after step {steps}, at {progress:.1%} of it."
    for stream in streams:
        if not stream.samples:
            yield f"{stream.name} gives no sample at all."
        elif stream.passes > _MOST_PASSES:
            yield f"{stream.name} is passed over {stream.passes:.1f} times, more than {_MOST_PASSES:g}."
        elif stream.coverage < _LEAST_COVERAGE:
            yield f"Only {stream.coverage:.2%} of the samples of {stream.name} are seen."
        if stream.runs_out:
            yield f"{stream.name} runs out in step {stream.last_step}, at {stream.last_progress:.1%} of the run."
