"""What the parts of a trainer share: the streams and their mixture, the ranks, and the present step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn
from transformers import TrainerState

from mixer.loading.step import StepCounts

if TYPE_CHECKING:
    from mixer.distributed.collectives import RankSync
    from mixer.ledger.ledger import Ledger
    from mixer.ledger.recorder import Recorder
    from mixer.loading.build import MixtureOptions
    from mixer.loading.iterable.feed import Feed
    from mixer.loading.learning_rate import LearningRate
    from mixer.loading.loader import MixingLoader
    from mixer.measurements import Needs
    from mixer.mixture.bad_samples import Skipping
    from mixer.mixture.controller import Mixing
    from mixer.mixture.plan import Plan
    from mixer.mixture.stream import Stream
    from mixer.policies.contract import Policy
    from mixer.policies.objective import Objective
    from mixer.trainer.config import MixingOptions
    from mixer.trainer.hooks import StepHook
    from mixer.trainer.observers.gradient_options import Probing
    from mixer.utils.arrays import Int64Array


@dataclass
class PresentStep:
    """The step that all ranks have confirmed last.

    Args:
        plan: Its plan.
        counts: Its items and tokens, over all ranks.
        micro_items: Items of each of this rank's micro-batches; 0 for padding.
        is_left_out: Whether its optimizer step was left out, because a loss or the gradient is not finite.
    """

    plan: Plan | None = None
    counts: StepCounts = field(default_factory=lambda: StepCounts(_NONE, _NONE))
    micro_items: list[int] = field(default_factory=list)
    is_left_out: bool = False

    def clear(self) -> None:
        """Begins a run."""
        self.plan, self.counts, self.micro_items = None, StepCounts(_NONE, _NONE), []

    @property
    def its_plan(self) -> Plan:
        """The plan, in a run."""
        assert self.plan is not None, "a step is confirmed before anything asks for its plan"  # noqa: S101
        return self.plan

    @property
    def num_items(self) -> int:
        """Items over all ranks; at least 1, because it is a divisor."""
        return max(self.counts.num_items, 1)


_NONE: Int64Array = np.zeros(0, dtype=np.int64)


@dataclass
class StepNeeds:
    """What a run needs of its steps.

    Args:
        one_stream_each: Whether every micro-batch contains one stream.
        samples: Whether a step keeps its samples.
        outputs: Whether methods see the model's output.
        item_losses: Whether the policy needs the loss of each item.
        recovers: Whether a step that does not fit into memory is repeated in smaller micro-batches.
    """

    one_stream_each: bool = False
    samples: bool = False
    outputs: bool = False
    item_losses: bool = False
    recovers: bool = False


@dataclass(frozen=True)
class Steering:
    """An objective with the rows that steer.

    Args:
        objective: The objective, with its targets by name.
        rows: The data set of each target (and each set with a bound) by name; empty if the policy reads none.
        taken: Number of rows that were taken out of evaluation sets, by name.
    """

    objective: Objective
    rows: Mapping[str, Any]
    taken: Mapping[str, int]


@dataclass
class Options:
    """The options of a mixture besides its streams; see `MixingMixin`.

    Args:
        policy: The mixing policy.
        mixture: Settings of the mixture.
        skipping: What happens to samples that cannot be loaded.
        probe: Options for measuring gradients, or `None`.
        reference_model: The reference model, or `None`.
        methods: The user's methods.
        conflict: How conflicting gradients are combined, or `None`.
        steering: The objective with the rows that steer, or `None`.
        config: All others, as the user has given them.
    """

    policy: Policy
    mixture: MixtureOptions
    skipping: Skipping
    probe: Probing | None
    reference_model: nn.Module | None
    methods: Sequence[StepHook]
    conflict: Any
    steering: Steering | None
    config: MixingOptions

    @property
    def needs(self) -> Needs:
        """What policy and schedule ask a run to measure."""
        return (*self.policy.needs, *self.mixture.schedule.needs)

    @property
    def aim(self) -> Steering:
        """The objective with the rows that steer, where something is measured on them."""
        assert self.steering is not None, "who needs an objective has been refused without one"  # noqa: S101
        return self.steering


@dataclass
class Run:
    """The mixture that a trainer trains on, and where its present run is.

    Args:
        streams: The streams.
        options: The options of the mixture.
        mixing: The controller of the mixture.
        rank_sync: Collective operations.
        ledger: The ledger.
        recorder: Records steps in it.
        needs: What the run needs of its steps.
        step: The present step.
        hooks: The hooks of its steps, in order.
        loader: The loader of the present run.
        feed: The rows of iterable streams in the present run.
        learning_rate: The learning rate on the data clock, in the present run.
        gradient_norm: Gradient norm of the last step, before clipping.
        policy_error: Error of the policy after the last step, which all ranks raise together.
        method_error: Error of a method after the last step, likewise.
        has_begun: Whether the present run has asked for a step.
    """

    streams: Sequence[Stream]
    options: Options
    mixing: Mixing
    rank_sync: RankSync
    ledger: Ledger
    recorder: Recorder
    needs: StepNeeds = field(default_factory=StepNeeds)
    step: PresentStep = field(default_factory=PresentStep)
    hooks: tuple[StepHook, ...] = ()
    loader: MixingLoader | None = None
    feed: Feed | None = None
    learning_rate: LearningRate | None = None
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
        if not clock.counts_steps:
            state.max_steps = clock.max_steps

    def set_learning_rate(self) -> None:
        """Sets the learning rate by the clock; if that counts steps, the Trainer sets it."""
        mixing, learning_rate = self.mixing, self.learning_rate
        if learning_rate is not None and not mixing.clock.counts_steps:
            learning_rate.place(mixing.clock.schedule_position, mixing.learning_rate_factor)
