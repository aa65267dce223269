"""Per-stream gradients and gradient noise, measured when the policy or the schedule needs them."""

import contextlib
import math
from typing import Literal

import numpy as np
from torch import Tensor, nn
from transformers.utils import logging

from mixer.gradients.probe import GradientProbe
from mixer.gradients.rank_noise import RankNoise, noise_of_ranks
from mixer.loading.loaded_step import StepBatch, StepResult
from mixer.measure.auxiliary_passes import AuxiliaryPasses
from mixer.measurements import GradientNoise, Gradients, GradientStatistics, Results
from mixer.run.hooks import ForwardResult, StepHook
from mixer.run.probing import ProbedSteps, exact_refusal

logger = logging.get_logger(__name__)


class RunProbe(StepHook):
    """Measures the gradients in the steps of a run that are due.

    Args:
        probed: The steps that are measured, and how.
        passes: Run the model; the present step.
    """

    def __init__(self, probed: ProbedSteps, passes: AuxiliaryPasses):
        (self.options, self.intervals, self.variance), self._passes = probed, passes
        self.statistics: GradientStatistics | None = None  # of the last step, if it was measured
        self.seconds = 0.0  # duration of that measurement
        self._names, self._world_size = passes.run.mixing.names, passes.ranks.world_size
        self._warned: set[str] = set()  # parameters that were named in a warning
        self._probes: dict[tuple[str, bool], GradientProbe] = {}
        self._present: GradientProbe | None = None
        self._homogeneous = self.options.homogeneous  # whether the present micro-batches contain one stream each
        self._seconds_before, self._draw = 0.0, 0
        self._has_warned = False

    def is_due(self, step: int) -> bool:
        """Whether a step, by its number from 1, is measured."""
        return any(step % interval == 0 for interval in self.intervals)

    def check(self, model: nn.Module) -> None:
        """Checks at construction that a model can be read at all.

        Raises:
            ValueError: If it cannot, or not with these options; with the reason.
        """
        homogeneous = self.options.homogeneous
        self._make(model, self._mode(2 if homogeneous else 1), homogeneous)

    def prepare(self, model: nn.Module) -> None:
        """Forgets the model of an earlier run; see `StepHook.prepare`."""
        self.release()

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Begins a measurement, and discards an unfinished one; see `StepHook.begin_step`.

        Raises:
            ValueError: If the step cannot be measured with these options.
        """
        self.cancel()
        if not self.is_due(batch.plan.step):
            return
        self._homogeneous = homogeneous = self.options.homogeneous or self._passes.is_packed(batch)
        num_micro_batches = len(batch.micro_batches)
        if self.options.needs_one_micro_batch and homogeneous:
            raise exact_refusal("samples are packed into rows, so that micro-batches are of one stream each")
        if self.options.needs_one_micro_batch and num_micro_batches > 1:
            raise exact_refusal(f"this step has {num_micro_batches} micro-batches")
        mode = self._mode(2 if homogeneous else num_micro_batches)
        if (mode, homogeneous) not in self._probes:
            self._probes[mode, homogeneous] = self._make(model, mode, homogeneous)
        self._present = self._probes[mode, homogeneous]
        self._seconds_before, self._draw = self._present.seconds, batch.plan.index

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
            seed=self._passes.trainer.args.seed,
            world_size=self._world_size,
            warned=self._warned,
        )

    def begin_micro_batch(self, trained: ForwardResult, is_synchronised: bool) -> None:
        """Reads the micro-batch if the step is measured; see `StepHook.begin_micro_batch`."""
        if self._present is None:
            return
        stream_ids = trained.micro.stream_ids
        items = trained.items.cpu().numpy() * int(trained.num_items > 0)
        if len(items) != len(stream_ids):  # packed rows of one stream: only the number of items matters
            items = np.diff(np.linspace(0, items.sum(), len(stream_ids) + 1).astype(np.int64))
        self._present.start(stream_ids, items, draw=self._draw)

    def end_backward(self, model: nn.Module) -> None:
        """Ends a measurement; see `StepHook.end_backward`."""
        probe, self._present = self._present, None
        self.statistics, self.seconds = None, 0.0
        if probe is not None:
            self.statistics = probe.finish(self._passes.sum_reduction_scale(), self._passes.loss_factors())
            self._check_variance(self.statistics)
            self.seconds = probe.seconds - self._seconds_before

    def observe(self, result: StepResult) -> Results:
        """Returns the statistics of a measured step; see `StepHook.observe`."""
        return {} if self.statistics is None else {Gradients: self.statistics}

    def release(self) -> None:
        """Lets go of the run's model: another run's may be another one, or wrapped; see `StepHook.release`."""
        self.cancel()
        self._probes.clear()
        self._has_warned = False

    def cancel(self) -> None:
        """Discards an unfinished measurement."""
        probe, self._present = self._present, None
        if probe is not None:
            probe.cancel()

    def _check_variance(self, statistics: GradientStatistics) -> None:
        """Warns once per run of streams whose variance is unknown because of too few samples."""
        is_known = ~np.isfinite(np.diagonal(statistics.gram)) | np.isfinite(statistics.variance)
        missing = [self._names[place] for place in np.flatnonzero(~is_known)]
        if not self.variance or not missing or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "The gradient variance of these streams is unknown: %s. Reason: %s.",
            ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else ""),
            "with micro-batches of one stream each, a stream needs two of them in a step; lower "
            "per_device_train_batch_size"
            if self._homogeneous
            else "a stream needs two samples in a step; raise the batch size, or the stream's share",
        )


class NoiseBetweenRanks(StepHook):
    """Measures the gradient noise from the ranks' differences.

    Args:
        passes: Run the model; the present step.
    """

    def __init__(self, passes: AuxiliaryPasses):
        self._passes = passes
        self._noise: RankNoise | None = None
        self._listening = contextlib.ExitStack()
        self._sums: Tensor | None = None  # of the last step, float64 `[4]`; see `RankNoise.measure`

    def prepare(self, model: nn.Module) -> None:
        """Refuses a model that is not wrapped in DDP; see `StepHook.prepare`."""
        self._noise = RankNoise(model)

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Counts the items anew; see `StepHook.begin_step`."""
        self._num_own, self._num_samples = 0, batch.plan.total

    def begin_micro_batch(self, trained: ForwardResult, is_synchronised: bool) -> None:
        """Listens to the backward that is synchronised; see `StepHook.begin_micro_batch`."""
        self._num_own += trained.num_items
        if is_synchronised and self._noise is not None:
            self._listening.enter_context(self._noise.listening())

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        """Stops listening; see `StepHook.end_micro_batch`."""
        self._listening.close()

    def cancel(self) -> None:
        """Stops listening; see `StepHook.cancel`."""
        self._listening.close()

    def before_averaging(self) -> None:
        """Measures this rank's gradient; see `StepHook.before_averaging`."""
        if self._noise is not None:
            self._noise.take_local()

    def end_backward(self, model: nn.Module) -> None:
        """Measures the average; see `StepHook.end_backward`."""
        if self._noise is not None:
            device = self._passes.trainer.args.device
            noise = self._noise.measure(self._num_own, self._passes.loss_scale(), device)
            self._sums = self._passes.ranks.add_up(noise)

    def observe(self, result: StepResult) -> Results:
        """Returns the noise, the same on all ranks; waits for a GPU. See `StepHook.observe`."""
        if self._sums is None:
            return {}
        noise = noise_of_ranks(self._sums.tolist(), self._passes.ranks.world_size, self._num_samples)
        is_known = math.isfinite(noise.squared_norm) and math.isfinite(noise.variance)
        return {GradientNoise: noise} if is_known else {}

    def release(self) -> None:
        """Lets go of the model; see `StepHook.release`."""
        self._noise = self._sums = None
