"""Which updates of a run have their gradients measured, and how."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.utils import logging

from mixer.gradient_statistics import GradientStatistics
from mixer.policies import Policy
from mixer.probe import GradientProbe
from mixer.schedules import Schedule

logger = logging.get_logger(__name__)

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class Probing:
    """How the gradients of the streams are measured; see `GradientProbe`.

    Args:
        interval_steps: Measures after updates whose number is a multiple of it, for ledger and log; `None` only where
            the policy or the batch-size schedule needs it.
        mode: `"exact"`, `"sketch"`, or `"auto"`: exact where one rank has one micro-batch, else a sketch.
        variance: Whether to measure the samples' variance too; `None` does where the policy or the schedule needs it.
        layers: Patterns of names of the layers to read; `None` for all.
        homogeneous: Whether micro-batches are of one stream each, so that layers of any kind can be read.
        exact_accumulate: Whether `"exact"` goes over several micro-batches and ranks, for the memory of so many times
            the parameters as there are streams.
        sketch_size: Rows and columns of each parameter's projection, at most.

    Raises:
        ValueError: If a value is outside its range.
    """

    interval_steps: int | None = None
    mode: Literal["auto", "exact", "sketch"] = "auto"
    variance: bool | None = None
    layers: list[str] | None = None
    homogeneous: bool = False
    exact_accumulate: bool = False
    sketch_size: int = 64

    def __post_init__(self) -> None:
        if self.interval_steps is not None and self.interval_steps < 1:
            raise ValueError(f"probe.interval_steps must be at least 1, or None, got {self.interval_steps}.")
        if self.mode not in ("auto", "exact", "sketch"):
            raise ValueError(f"probe.mode must be 'auto', 'exact' or 'sketch', got {self.mode!r}.")
        if self.sketch_size < 1:
            raise ValueError(f"probe.sketch_size must be at least 1, got {self.sketch_size}.")


class RunProbe:
    """Measures the gradients in those updates of a run after which somebody wants to know them.

    Args:
        options: How.
        interval_steps: Number of updates from a measurement to the next.
        variance: Whether the samples' variance is measured.
        num_streams: Number of streams.
        world_size: Number of ranks.
        seed: Seed of the projections.
    """

    def __init__(
        self, options: Probing, interval_steps: int, variance: bool, num_streams: int, world_size: int, seed: int
    ):
        self.options, self.interval_steps, self.variance = options, interval_steps, variance
        self._num_streams, self._world_size, self._seed = num_streams, world_size, seed
        self._probes: dict[tuple[str, bool], GradientProbe] = {}
        self._present: GradientProbe | None = None
        self._seconds_before, self._draw = 0.0, 0

    def is_due(self, step: int) -> bool:
        """Whether an update is measured.

        Args:
            step: Its index.

        Returns:
            Whether the number of updates after it is a multiple of the interval.
        """
        return (step + 1) % self.interval_steps == 0

    def check(self, model: nn.Module) -> None:
        """Finds out at construction whether a model can be read at all.

        Args:
            model: The model.

        Raises:
            ValueError: If it cannot, or not in this way; the reason is named.
        """
        self._make(model, self._mode(2 if self.options.homogeneous else 1), self.options.homogeneous)

    def begin(self, step: int, model: nn.Module, num_micro_batches: int, is_by_stream: bool) -> None:
        """Begins a measurement, anew if the last one came to nothing.

        Args:
            step: Index of the update.
            model: The model as it is trained.
            num_micro_batches: Micro-batches of the update on each rank.
            is_by_stream: Whether these are of one stream each, because rows cannot be told apart.
        """
        self.cancel()
        homogeneous = self.options.homogeneous or is_by_stream
        mode = self._mode(2 if homogeneous else num_micro_batches)
        if (mode, homogeneous) not in self._probes:
            self._probes[mode, homogeneous] = self._make(model, mode, homogeneous)
        self._present = self._probes[mode, homogeneous]
        self._seconds_before, self._draw = self._present.seconds, step

    def _mode(self, num_micro_batches: int) -> Literal["exact", "sketch"]:
        if self.options.mode != "auto":
            return self.options.mode
        is_one = self._world_size == num_micro_batches == 1
        return "exact" if is_one or self.options.exact_accumulate else "sketch"

    def _make(self, model: nn.Module, mode: Literal["exact", "sketch"], homogeneous: bool) -> GradientProbe:
        return GradientProbe(
            model,
            self._num_streams,
            mode,
            variance=self.variance,
            layers=self.options.layers,
            homogeneous=homogeneous,
            exact_accumulate=self.options.exact_accumulate,
            sketch_size=self.options.sketch_size,
            seed=self._seed,
            world_size=self._world_size,
        )

    def start(self, stream_ids: Int64Array, items_per_row: Tensor, counts: bool) -> None:
        """Reads the next micro-batch, if the update is measured.

        Args:
            stream_ids: int64 `[num_samples]`: the stream of each sample.
            items_per_row: int64 `[num_rows]`: terms of the loss.
            counts: Whether it counts for anything: else it has no items.
        """
        if self._present is None:
            return
        items = items_per_row.cpu().numpy() * int(counts)
        if len(items) != len(stream_ids):  # packed rows of one stream: only how many items they have matters
            items = np.diff(np.linspace(0, items.sum(), len(stream_ids) + 1).astype(np.int64))
        self._present.start(stream_ids, items, draw=self._draw)

    def finish(self, loss_scale: float, loss_weights: np.ndarray | None) -> tuple[GradientStatistics | None, float]:
        """Ends a measurement; to be called on all ranks.

        Args:
            loss_scale: What the losses were multiplied by.
            loss_weights: `[num_streams]`: factors on the streams' losses, or `None`.

        Returns:
            The statistics and the seconds they took, or `None` and 0 if the update was not measured.
        """
        probe, self._present = self._present, None
        if probe is None:
            return None, 0.0
        statistics = probe.finish(loss_scale, loss_weights)
        if self.variance and self.options.homogeneous and np.isnan(statistics.variance[statistics.counts > 1]).any():
            logger.warning_once(
                "The variance of a stream's gradient needs two micro-batches of it: lower per_device_train_batch_size."
            )
        return statistics, probe.seconds - self._seconds_before

    def forget_model(self) -> None:
        """Makes ready for another run, whose model may be another one, or wrapped."""
        self.cancel()
        self._probes.clear()

    def cancel(self) -> None:
        """Forgets a measurement that came to nothing."""
        probe, self._present = self._present, None
        if probe is not None:
            probe.cancel()


def resolve_probing(
    options: Probing | None, policy: Policy, schedule: Schedule, world_size: int
) -> tuple[Probing, int, bool] | None:
    """Finds out whether a run measures gradients, and how often.

    Args:
        options: What the user says, or `None`.
        policy: The policy.
        schedule: The batch-size schedule; on several ranks it needs no probe, for these differ by the noise.
        world_size: Number of ranks.

    Returns:
        The options, the number of updates from a measurement to the next, and whether the samples' variance is
        measured; `None` if nobody wants to know.
    """
    by_policy = policy.needs & {"gradient", "gradient_variance"}
    by_schedule = "gradient_noise" in schedule.needs and world_size == 1
    given = options or Probing()
    intervals = [policy.interval_steps] * bool(by_policy) + [schedule.interval_steps] * by_schedule
    if given.interval_steps is not None:
        intervals.append(given.interval_steps)
    if not intervals:
        return None
    needs_variance = by_schedule or "gradient_variance" in policy.needs
    variance = given.variance if given.variance is not None else needs_variance or not by_policy
    if needs_variance and not variance:
        raise ValueError(
            f"probe.variance=False, but {policy.name if by_policy else schedule.name} needs it: leave it at None."
        )
    return given, math.gcd(*intervals), variance
