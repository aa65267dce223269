"""Hooks: parts of a run that take part in its steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mixer.loading.loaded_step import MicroBatch, StepBatch, StepResult
from mixer.measurements import Kind, Results
from mixer.mixture.step_plan import StepPlan


@dataclass(frozen=True)
class ForwardResult:
    """A micro-batch in training.

    Args:
        plan: The step's plan.
        micro: The micro-batch, with positions.
        output: The model's output with its graph, in `Method.end_forward` and `Method.term`; `None` before
            the forward and after the backward.
        items: int64 `[num_rows]`: number of loss terms in each row.
        row_losses: `[num_rows]`, on the device: the sum of each row's loss terms, without a graph; `None` before the
            backward, or if rows cannot be separated.
    """

    plan: StepPlan
    micro: MicroBatch
    output: Any
    items: Tensor
    row_losses: Tensor | None = None

    @property
    def num_items(self) -> int:
        """Number of this rank's own loss terms; 0 for padding."""
        return 0 if self.micro.is_padding else int(self.items.sum())


class Observer:
    """Observes the steps of a run after they are trained; the methods of this base class do nothing.

    Attributes:
        measures: The classes of requests that it fulfils.
        seconds_after: Duration of what it measured after the last optimizer step; counts as measuring in the ledger.
    """

    measures: tuple[Kind, ...] = ()
    seconds_after: float = 0.0

    def prepare(self, model: nn.Module) -> None:
        """Called when the model is ready for training.

        Args:
            model: The model as it is trained.

        Raises:
            ValueError: If the hook does not support it.
        """

    def observe(self, result: StepResult) -> Results:
        """Called after the optimizer step; all ranks call it.

        Args:
            result: The step.

        Returns:
            What it has measured for the policy and the schedule, by the class of the request; the same on every rank.
        """
        return {}

    def release(self) -> None:
        """Called when the run has ended: releases what only the run needs."""


class StepHook(Observer):
    """Takes part in the steps of a run; the methods of this base class do nothing.

    The hooks of a run are one list, and are called in its order: first what observes a step, then what forms its
    gradient, then replay buffers and the user's methods.
    """

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Called before the micro-batches of a step run, again if the step is repeated."""

    def begin_micro_batch(self, trained: ForwardResult, is_synchronised: bool) -> None:
        """Called before the forward of a micro-batch.

        Args:
            trained: The micro-batch, without an output.
            is_synchronised: Whether its backward averages the gradient over the ranks.
        """

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        """Called after the backward of a micro-batch.

        Args:
            model: The model as it is trained.
            trained: The micro-batch.
            ends_priority: Whether it was the last of the micro-batches that go first.
        """

    def before_averaging(self) -> None:
        """Called when this rank's gradient is complete, if the ranks average theirs after the backward."""

    def end_backward(self, model: nn.Module) -> None:
        """Called once a step's gradient is complete and averaged, before clipping."""

    def cancel(self) -> None:
        """Called if a step fails, perhaps to be repeated: releases what is held for it."""

    def release(self) -> None:
        """Called when the run has ended: releases what only the run needs; by default what a step holds."""
        self.cancel()


def step_hooks(hooks: Sequence[Observer]) -> list[StepHook]:
    """Returns the hooks that take part in steps, beyond observing them."""
    return [hook for hook in hooks if isinstance(hook, StepHook)]
