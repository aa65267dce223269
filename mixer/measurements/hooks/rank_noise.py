"""Measures gradient noise by the differences between the ranks' gradients."""

import contextlib

from torch import Tensor, nn

from mixer.gradients.rank_noise import RankNoise, noise_of_ranks
from mixer.loading.loaded_step import StepBatch, StepResult
from mixer.measurements import GradientNoise, Results, asked
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.run.hooks import ForwardResult, StepHook


class NoiseBetweenRanks(StepHook):
    """Measures the gradient noise from the ranks' differences.

    Args:
        passes: Run the model; the present step.
    """

    measures = (GradientNoise,)

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
        return {GradientNoise: noise} if noise.is_known else {}

    def release(self) -> None:
        """Lets go of the model; see `StepHook.release`."""
        self._noise = self._sums = None


def new_hook(passes: AuxiliaryPasses) -> NoiseBetweenRanks | None:
    """Makes the hook, if noise is asked for on several ranks; one rank's shows in the streams' gradients."""
    is_asked = asked(passes.plan.needs, GradientNoise) and passes.ranks.world_size > 1
    return NoiseBetweenRanks(passes) if is_asked else None
