"""Measures the gradients of a run, in some of its steps."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor, nn
from transformers.utils import logging

from mixer.gradients.probe import GradientProbe
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.trainer.observers.gradient_options import Probing, exact_refusal
from mixer.utils.arrays import Int64Array

logger = logging.get_logger(__name__)


class RunProbe:
    """Measures the gradients in those steps of a run after which somebody wants to know them.

    Args:
        options: How.
        intervals: Steps whose number is a multiple of one of them are measured.
        variance: Whether the samples' variance is measured.
        names: Names of the streams.
        world_size: Number of ranks.
        seed: Seed of the projections.
    """

    def __init__(
        self,
        options: Probing,
        intervals: tuple[int, ...],
        variance: bool,
        names: Sequence[str],
        world_size: int,
        seed: int,
    ):
        self.options, self.intervals, self.variance = options, intervals, variance
        self._names, self._world_size, self.seed = tuple(names), world_size, seed
        self._told: set[str] = set()  # parameters that a warning has named
        self._probes: dict[tuple[str, bool], GradientProbe] = {}
        self._present: GradientProbe | None = None
        self._homogeneous = options.homogeneous  # whether the present micro-batches are of one stream each
        self._seconds_before, self._draw = 0.0, 0
        self._has_warned = False

    def is_due(self, step: int) -> bool:
        """Whether a step is measured.

        Args:
            step: Its number, from 1.

        Returns:
            Whether somebody wants to know after it.
        """
        return any(step % interval == 0 for interval in self.intervals)

    def check(self, model: nn.Module) -> None:
        """Finds out at construction whether a model can be read at all.

        Args:
            model: The model.

        Raises:
            ValueError: If it cannot, or not in this way; the reason is named.
        """
        homogeneous = self.options.homogeneous
        self._make(model, self._mode(2 if homogeneous else 1), homogeneous)

    def begin(self, step: int, model: nn.Module, num_micro_batches: int, is_packed: bool) -> None:
        """Begins a measurement, anew if the last one came to nothing.

        Args:
            step: Number of the step, from 1.
            model: The model as it is trained.
            num_micro_batches: Micro-batches of the step on each rank.
            is_packed: Whether rows are not samples on some rank; micro-batches are of one stream each then.

        Raises:
            ValueError: If they cannot be measured in that way.
        """
        self.cancel()
        self._homogeneous = homogeneous = self.options.homogeneous or is_packed
        mode = self._mode(2 if homogeneous else num_micro_batches)
        if self.options.needs_one_micro_batch and (homogeneous or num_micro_batches > 1):
            raise exact_refusal(
                "samples are packed into rows, so that micro-batches are of one stream each"
                if homogeneous
                else f"this step has {num_micro_batches} micro-batches"
            )
        if (mode, homogeneous) not in self._probes:
            self._probes[mode, homogeneous] = self._make(model, mode, homogeneous)
        self._present = self._probes[mode, homogeneous]
        self._seconds_before, self._draw = self._present.seconds, step - 1

    def _mode(self, num_micro_batches: int) -> Literal["exact", "sketch"]:
        if self.options.mode != "auto":
            return self.options.mode
        is_one = self._world_size == num_micro_batches == 1
        return "exact" if is_one or self.options.exact_accumulate else "sketch"

    def _make(self, model: nn.Module, mode: Literal["exact", "sketch"], homogeneous: bool) -> GradientProbe:
        return GradientProbe(
            model,
            len(self._names),
            mode,
            variance=self.variance,
            layers=self.options.layers,
            homogeneous=homogeneous,
            exact_accumulate=self.options.exact_accumulate,
            sketch_size=self.options.sketch_size,
            seed=self.seed,
            world_size=self._world_size,
            told=self._told,
        )

    def start(self, stream_ids: Int64Array, items_per_row: Tensor, counts: bool) -> None:
        """Reads the next micro-batch, if the step is measured.

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
            The statistics and the seconds they took, or `None` and 0 if the step was not measured.
        """
        probe, self._present = self._present, None
        if probe is None:
            return None, 0.0
        statistics = probe.finish(loss_scale, loss_weights)
        self._check_variance(statistics)
        return statistics, probe.seconds - self._seconds_before

    def forget_model(self) -> None:
        """Makes ready for another run, whose model may be another one, or wrapped."""
        self.cancel()
        self._probes.clear()
        self._has_warned = False

    def cancel(self) -> None:
        """Forgets a measurement that came to nothing."""
        probe, self._present = self._present, None
        if probe is not None:
            probe.cancel()

    def _check_variance(self, statistics: GradientStatistics) -> None:
        """Says once a run of which streams there is no variance; what is not finite is no question of numbers."""
        is_known = ~np.isfinite(np.diagonal(statistics.gram)) | np.isfinite(statistics.variance)
        missing = [self._names[place] for place in np.flatnonzero(~is_known)]
        if not self.variance or not missing or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "No variance of the gradient is known of streams %s: %s.",
            ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else ""),
            "where micro-batches are of one stream each, a stream needs two micro-batches of it in a step; lower "
            "per_device_train_batch_size"
            if self._homogeneous
            else "a stream needs two samples of it in a step; raise the batch size, or the stream's share",
        )
