"""A planned run, summed up."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mixer.loading.learning_rate import decay_in_words
from mixer.tools.analysis.simulate.planned_parts import Parts
from mixer.tools.console import Result
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import require
from mixer.utils.text import first_of, listed

_MOST_PASSES = 4.0
_LEAST_COVERAGE = 0.1


class StreamPlan(Result):
    """The part of a stream in a planned run.

    Attributes:
        name: Its name.
        samples: Its samples.
        share: Its share of the samples of all streams.
        num_samples: Size of its data set; 0 if it is not known.
        passes: Passes over its data set; NaN if its size is not known.
        coverage: Share of its data set that is seen; likewise.
        tokens: Its tokens.
        token_share: Its share of the tokens of all streams.
        labels: Its labels, if an amount of the run counts them; else 0.
        label_share: Its share of the labels of all streams.
        first_step: Step with its first sample, from 1; 0 if there is none.
        first_progress: Share of the run that was done before that step; NaN likewise.
        last_step: Step with its last sample; 0 likewise.
        last_progress: Share of the run that was done after that step; NaN likewise.
        runs_out: Whether it had no sample left before the run's end.
    """

    def __init__(self, parts: Parts, number: int, counts: Int64Array, positions: FloatArray):
        mixing, stream, clock = parts.mixing, parts.streams[number], parts.mixing.clock
        steps = np.append(np.flatnonzero(counts) + 1, 0)
        places = np.concatenate([[np.nan, 0.0], positions])  # progress before each step; NaN for step 0
        leaves_at = float(mixing.planner.leaves[number])
        stays = leaves_at == 1.0 or clock.progress < leaves_at
        is_active = bool(mixing.planner.active(clock.progress)[number])
        self.name = stream.name
        self.samples = int(mixing.seen[number])
        self.share = self.samples / max(int(mixing.seen.sum()), 1)
        self.num_samples = stream.num_samples
        self.passes = float(mixing.stream_epochs[number])
        self.coverage = min(self.passes, 1.0)  # in this order NaN stays
        self.tokens = int(mixing.num_tokens[number])
        self.token_share = self.tokens / max(int(mixing.num_tokens.sum()), 1)
        self.labels = int(mixing.num_labels[number])
        self.label_share = self.labels / max(int(mixing.num_labels.sum()), 1)
        self.first_step, self.last_step = int(steps[0]), int(steps[:-1].max(initial=0))
        self.first_progress = float(places[self.first_step])
        self.last_progress = float(places[self.last_step + 1]) if self.last_step else np.nan
        self.runs_out = stays and not is_active and not stream.is_memory and 0 < self.last_step < clock.step


class MixturePart(NamedTuple):
    """The realised mixture of a part of the run.

    Attributes:
        step: Its last step.
        progress: Progress after that step.
        shares: `[num_streams]`: shares of its samples.
        mean_batch_size: Mean number of samples of its steps.
    """

    step: int
    progress: float
    shares: FloatArray
    mean_batch_size: float


# Of a step: counts, weights, batch size, the progress after it, and its learning rate.
Row = tuple[Int64Array, FloatArray, int, float, float]


class Simulated(Result):
    """A run that is planned to its end.

    Args:
        parts: The objects that planned it.
        rows: Its steps.
        estimated: Names of the streams whose tokens are estimated.
        source: A sentence on the source of the losses.

    Attributes:
        num_ranks: Number of processes.
        streams: The part of each stream.
        steps: Number of steps.
        samples: Samples that count in the clock.
        tokens: Tokens that count in the clock.
        labels: Labels that count in the clock; 0 if nothing counts them.
        epochs: Epochs of the mixture.
        progress: Share of the budget that is done at the end; below 1 if the streams were exhausted.
        counts: int64 `[steps, num_streams]`: samples of each step.
        weights: `[steps, num_streams]`: the shares that gave the counts.
        batch_sizes: int64 `[steps]`: batch sizes before the rest of an epoch cuts them.
        positions: `[steps]`: progress after each step.
        learning_rates: `[steps]`: planned learning rates; NaN if they follow a metric.
        planned_steps: Number of steps of the learning rate's schedule.
        estimated_tokens: Names of the streams whose tokens are estimated from some of their samples.
        source: A sentence on the source of the losses.
        warnings: Sentences.
    """

    def __init__(self, parts: Parts, rows: Sequence[Row], estimated: Sequence[str], source: str):
        clock, columns = parts.mixing.clock, map(np.array, zip(*rows, strict=True))
        self.counts, self.weights, self.batch_sizes, self.positions, self.learning_rates = columns
        self.num_ranks = parts.args.world_size
        self.streams = [StreamPlan(parts, number, own, self.positions) for number, own in enumerate(self.counts.T)]
        self.steps, self.planned_steps = clock.step, clock.planned_steps
        self.samples, self.tokens, self.labels = clock.num_samples, clock.num_tokens, clock.num_labels
        self.epochs, self.progress = clock.epoch, clock.progress
        self.estimated_tokens = [*estimated, *parts.stand_ins]
        self.source = source
        self.warnings = [*self._warnings(), *self._assumptions(parts)]
        if (said := decay_in_words(parts.args, clock)) is not None:
            step = int(np.searchsorted(self.positions, clock.decay_begins())) + 1
            self.warnings.append(f"{said} Here that is after step {step:,} of {self.steps:,}.")

    def mixture(self, every: float) -> list[MixturePart]:
        """Gives the realised mixture in parts of the run, each with the share `every` of it, in (0, 1]."""
        check_every(every)
        part_of = np.ceil(self.positions / every - 1e-9)
        ends = np.flatnonzero(np.diff(part_of, append=np.inf))
        starts = np.append(0, ends[:-1] + 1)
        counts = np.add.reduceat(self.counts, starts)
        shares = counts / counts.sum(axis=1, keepdims=True)
        sizes = counts.sum(axis=1) / (ends + 1 - starts)
        columns = (ends + 1).tolist(), self.positions[ends].tolist(), shares, sizes.tolist()
        return [MixturePart(*values) for values in zip(*columns, strict=True)]

    def summary(self, every: float) -> dict[str, Any]:
        """Gives the run for `print_json`, with the mixture in parts (see `mixture`)."""
        arrays = ("counts", "weights", "positions", "batch_sizes", "learning_rates")
        names = [stream.name for stream in self.streams]  # any text, so in a mapping of their own
        parts = self.mixture(every)
        return {
            **{name: value for name, value in vars(self).items() if name not in arrays},
            "batch_size": _ends(self.batch_sizes),
            "samples_of_a_step": _ends(self.counts.sum(axis=1)),
            "learning_rate": _ends(self.learning_rates),
            "mixture": [{**part._asdict(), "shares": dict(zip(names, part.shares, strict=True))} for part in parts],
        }

    def _warnings(self) -> Iterator[str]:
        if self.progress < 1.0:
            left = f"at {self.progress:.1%} of it"
            yield f"The budget is not reached: no stream has a sample left after step {self.steps}, {left}."
        for stream in self.streams:
            if not stream.samples:
                yield f"{stream.name} gives no sample at all."
            elif stream.passes > _MOST_PASSES:
                yield f"{stream.name} is repeated {stream.passes:.1f} times, more than {_MOST_PASSES:g}."
            if stream.runs_out:
                yield f"{stream.name} runs out in step {stream.last_step}, at {stream.last_progress:.1%} of the run."
        little = [stream for stream in self.streams if self._is_left_behind(stream)]
        if texts := first_of([f"{stream.coverage:.2%} of the samples of {stream.name}" for stream in little]):
            yield f"Only {listed(texts)} are seen, far less than of the whole mixture."

    def _is_left_behind(self, stream: StreamPlan) -> bool:
        """Whether little of a stream is seen, beside what is seen of all: in a short run that is little of each."""
        num_samples = max(1, sum(own.num_samples for own in self.streams))
        whole = min(1.0, sum(own.samples for own in self.streams) / num_samples)
        return bool(stream.samples > 0 and stream.coverage < _LEAST_COVERAGE * whole)

    def _assumptions(self, parts: Parts) -> Iterator[str]:
        if iterable := [stream.name for stream in parts.streams if stream.is_iterable]:
            yield f"The number of rows in {', '.join(iterable)} is not known: assumed never to run out."
        if parts.stand_ins:
            yield f"Samples of the buffers {', '.join(parts.stand_ins)} are planned as if drawn at random."
        if self.estimated_tokens:
            yield f"Tokens of {', '.join(self.estimated_tokens)} are estimated from some of the samples."
        if np.isnan(self.learning_rates).any():
            yield "The learning rate follows a metric: it is not known before the run."


def check_every(every: float) -> None:
    """Refuses a share of the run outside (0, 1]."""
    require(0.0 < every <= 1.0, "every", "a share of the run above 0 and at most 1", every)


def _ends(values: NDArray[Any]) -> dict[str, float | int]:
    return {"first": values[0], "last": values[-1], "least": values.min(), "greatest": values.max()}
