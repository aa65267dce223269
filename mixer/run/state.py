"""What changes in a run, shared by the parts of a trainer: the mixture, the ledger and the present step."""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from transformers import Trainer, TrainerState

from mixer.distributed.collectives import RankSync
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.loading.batching import MicroBatchCap, Splitting
from mixer.loading.iterable.feed import Feed
from mixer.loading.learning_rate import ScheduledRate
from mixer.loading.loaded_step import StepCounts
from mixer.loading.loader import MixingLoader
from mixer.mixture.controller import Mixing
from mixer.mixture.step_plan import StepPlan
from mixer.run.plan import RunPlan
from mixer.utils.arrays import Int64Array


@dataclass
class PresentStep:
    """The step that all ranks have confirmed last.

    Args:
        plan: Its plan.
        counts: Its items and tokens, over all ranks.
        micro_items: Items of each of this rank's micro-batches; 0 for padding.
        left_out: Stream id and position of each sample that any rank skipped.
        is_left_out: Whether its optimizer step was left out, because a loss or the gradient is not finite.
    """

    plan: StepPlan | None = None
    counts: StepCounts = field(default_factory=lambda: StepCounts(_NONE, _NONE))
    micro_items: list[int] = field(default_factory=list)
    left_out: list[tuple[int, int]] = field(default_factory=list)
    is_left_out: bool = False

    def clear(self) -> None:
        """Begins a run."""
        self.plan, self.counts, self.micro_items = None, StepCounts(_NONE, _NONE), []

    @property
    def present_plan(self) -> StepPlan:
        """The plan, in a run."""
        assert self.plan is not None, "a step is confirmed before anything asks for its plan"  # noqa: S101
        return self.plan

    @property
    def num_items(self) -> int:
        """Items over all ranks; at least 1, because it is a divisor."""
        return max(self.counts.num_items, 1)


_NONE: Int64Array = np.zeros(0, dtype=np.int64)


@dataclass
class Run:
    """What changes in the runs of a trainer.

    Args:
        mixing: The controller of the mixture.
        ledger: The ledger of the present run.
        recorder: Records its steps there.
        step: The present step.
        loader: The loader of the present run.
        splitting: How its next step is split into micro-batches; the same on all ranks.
        feed: The rows of iterable streams in the present run.
        learning_rate: The learning rate on the data clock, in the present run.
        gradient_norm: Gradient norm of the last step, before clipping.
        policy_error: Error of the policy after the last step, which all ranks raise together.
        method_error: Error of a method after the last step, likewise.
        has_begun: Whether the present run has asked for a step.
    """

    mixing: Mixing
    ledger: Ledger
    recorder: Recorder
    step: PresentStep = field(default_factory=PresentStep)
    loader: MixingLoader | None = None
    splitting: Splitting = field(default_factory=partial(Splitting, MicroBatchCap(1)))
    feed: Feed | None = None
    learning_rate: ScheduledRate | None = None
    gradient_norm: float | None = None
    policy_error: Exception | None = None
    method_error: Exception | None = None
    has_begun: bool = False

    @property
    def present_loader(self) -> MixingLoader:
        """The loader, in a run."""
        assert self.loader is not None, "there is a loader in every run"  # noqa: S101
        return self.loader

    def show_place(self, state: TrainerState) -> None:
        """Sets the Trainer's epoch, which it would compute from a count of steps."""
        state.epoch = self.mixing.clock.epoch

    def show_length(self, state: TrainerState) -> None:
        """Sets the Trainer's number of steps, as far as it is known, for callbacks and progress bars."""
        clock = self.mixing.clock
        if not clock.is_step_based:
            state.max_steps = clock.max_steps

    def set_learning_rate(self) -> None:
        """Sets the learning rate by the clock; if that counts steps, the Trainer sets it."""
        mixing, learning_rate = self.mixing, self.learning_rate
        if learning_rate is not None and not mixing.clock.is_step_based:
            learning_rate.place(mixing.clock.schedule_position, mixing.learning_rate_factor)


class Basis(NamedTuple):
    """What the parts of a trainer are built on.

    Args:
        trainer: The trainer, after the construction of its parent class.
        plan: The plan of the run.
        run: What changes in it.
        ranks: Collective operations.
    """

    trainer: Trainer
    plan: RunPlan
    run: Run
    ranks: RankSync
