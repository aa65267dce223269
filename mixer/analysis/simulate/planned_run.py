"""A run that is planned as the trainer's loop asks for plans."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mixer.analysis.simulate.evaluations import Evaluations
from mixer.analysis.simulate.learning_rate import PlannedLearningRate
from mixer.analysis.simulate.parts import Parts
from mixer.analysis.simulate.seen import Seen, Source
from mixer.analysis.simulate.tokens import PlannedTokens
from mixer.analysis.simulate.written import Writer
from mixer.mixture.plan import Plan
from mixer.utils.arrays import FloatArray, Int64Array


@dataclass
class Columns:
    """What was planned, one entry a step."""

    counts: list[Int64Array] = field(default_factory=list)
    weights: list[FloatArray] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    positions: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)


class PlannedRun:
    """A run that is planned, step after step.

    Args:
        parts: What plans it.
        source: Where what steps show comes from.
        output: A folder for a ledger; `None` writes none.

    Attributes:
        columns: What was planned so far.
        tokens: What counts the tokens of plans.
        learning_rate: The planned learning rate.
    """

    def __init__(self, parts: Parts, source: Source, output: str | Path | None):
        self.parts, self.source = parts, source
        mixing = self.mixing = parts.mixing
        is_needed = mixing.policy.unit == "tokens" or mixing.clock.budget.tokens is not None
        self.tokens = PlannedTokens(parts.streams, mixing.planner, is_needed or "tokens" in mixing.schedule.needs)
        self.learning_rate = PlannedLearningRate(parts.args, mixing.clock.planned_steps)
        self.columns = Columns()
        self._evaluations = Evaluations(parts.args, mixing.clock)
        self._writer = None if output is None else Writer(Path(output), parts, source)

    def plan_all(self) -> None:
        """Plans the run to its end."""
        if self._evaluations.at_start:
            self._evaluate()
        for plan in self._plans():
            self._count(plan)
            if self._evaluations.is_due():
                self._evaluate()
        if self._writer is not None:
            self._writer.finish()

    def _plans(self) -> Iterator[Plan]:
        """Gives the plans as the trainer's loop asks for them: up to the end of the budget or of the streams."""
        mixing, clock = self.mixing, self.mixing.clock
        while clock.progress < 1.0 and not mixing.is_exhausted:
            if clock.counts_steps and clock.num_epochs_done >= clock.planned_epochs:
                return
            plan = mixing.next_plan()
            if plan is not None:  # else the rest of an epoch was dropped
                yield plan

    def _count(self, plan: Plan) -> None:
        mixing, columns = self.mixing, self.columns
        rate, factor = self.learning_rate.of(mixing), mixing.learning_rate_factor
        tokens = self.tokens.of(plan)
        mixing.check_tokens(plan, tokens)
        seen = self.source.after(plan, mixing.seen, tokens)
        for follow in self.parts.followers:
            follow(plan)
        self._observe(plan, tokens, seen)
        columns.counts.append(plan.counts)
        columns.weights.append(plan.weights)
        columns.batch_sizes.append(plan.batch_size)
        columns.positions.append(mixing.clock.progress)
        columns.learning_rates.append(rate)
        if self._writer is not None:
            self._writer.record(plan, tokens, seen, rate, factor)

    def _observe(self, plan: Plan, tokens: Int64Array, seen: Seen) -> None:
        is_seen = "loss" in self.mixing.policy.needs
        self.mixing.observe(
            plan,
            seen.losses if is_seen else np.full(len(tokens), np.nan),
            tokens,
            seen.loss,
            seen.gradient_norm,
            self.learning_rate.at,
            gradients=seen.gradients,
            update_norm=seen.update_norm,
            excess_losses=seen.excess_losses,
            losses_after=seen.losses_after,
        )

    def _evaluate(self) -> None:
        step = self.mixing.clock.step
        found = self.source.evaluation(step, self.mixing.seen)
        losses = {name: loss for name, loss in found.items() if name in self.parts.evaluated}
        if losses:
            self.mixing.observe_evaluation(losses)
            if self._writer is not None:
                self._writer.record_evaluation(step, losses)
