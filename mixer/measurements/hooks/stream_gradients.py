"""Measures the streams' gradients, when the policy or the schedule needs them."""

from typing import Literal

import numpy as np
from torch import nn
from transformers import TrainingArguments
from transformers.utils import logging

from mixer.gradients.probe import GradientProbe
from mixer.gradients.probe.probe_arguments import exact_refusal
from mixer.loading.loaded_step import StepBatch, StepResult
from mixer.measurements import Gradients, GradientStatistics, Results
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.mixture.controller import Mixing
from mixer.run.hooks import ForwardResult, StepHook
from mixer.run.plan import RunPlan
from mixer.run.probing import ProbedSteps
from mixer.utils.text import first_of, listed

logger = logging.get_logger(__name__)


class RunProbe(StepHook):
    """Measures the gradients in the steps of a run that are due.

    Args:
        probed: The steps that are measured, and how.
        passes: Run the model; the present step.
    """

    measures = (Gradients,)

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
            raise exact_refusal("micro-batches of packed rows are of one stream each", "probe.mode")
        if self.options.needs_one_micro_batch and num_micro_batches > 1:
            raise exact_refusal(f"this step has {num_micro_batches} micro-batches", "probe.mode")
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
            listed(first_of(missing, 5)),
            "with micro-batches of one stream each, a stream needs two of them in a step; lower "
            "per_device_train_batch_size"
            if self._homogeneous
            else "a stream needs two samples in a step; raise the batch size, or the stream's share",
        )


def new_hook(passes: AuxiliaryPasses) -> RunProbe | None:
    """Makes the hook, if gradients are asked for.

    Raises:
        ValueError: If the model or the steps cannot be read with these options.
    """
    if passes.plan.probed is None:
        return None
    _check_exact(passes.plan, passes.trainer.args, passes.run.mixing)
    probe = RunProbe(passes.plan.probed, passes)
    probe.check(passes.losses.own_model)
    return probe


def _check_exact(plan: RunPlan, args: TrainingArguments, mixing: Mixing) -> None:
    """Refuses an exact probe of steps with several micro-batches or ranks.

    Args:
        plan: The plan of the run, which measures gradients.
        args: The training arguments.
        mixing: The controller of the mixture.

    Raises:
        ValueError: If there will be several, or may be.
    """
    size, cap = mixing.size, plan.most_samples
    if plan.probed is None or not plan.probed.options.needs_one_micro_batch:
        return
    largest = size.value if size.is_constant else size.schedule.limits.maximum
    weighed = [stream.name for stream in plan.streams if stream.loss_weight != 1]
    name = "per_device_train_batch_size" if cap == args.train_batch_size else "max_samples_per_micro_batch"
    may_grow = f"batch_size={size.schedule.name} may grow beyond {name}={cap}; set maximum={cap}"
    max_tokens, is_one = plan.config.max_tokens_per_micro_batch, len(plan.streams) == 1
    reasons = {
        f"there are {args.world_size} ranks": args.world_size > 1,
        "homogeneous=True makes at least one micro-batch per stream": plan.probed.options.homogeneous,
        "max_tokens_per_micro_batch splits a step by the lengths of its samples": max_tokens is not None,
        f"{may_grow} if the schedule has it": largest is None,
        f"steps have up to {largest} samples and {name}={cap}": (largest or 0) > cap,
        f"loss_weight of {weighed} needs micro-batches of one stream each": bool(weighed),
        "streams that differ have micro-batches of their own": plan.streams_differ and not is_one,
    }
    for reason in (reason for reason, applies in reasons.items() if applies):
        raise exact_refusal(reason, "probe.mode")
    if not is_one and mixing.decision.loss_weights is not None:
        raise exact_refusal(f"{plan.policy.name} weights losses, so micro-batches are of one stream each", "probe.mode")
