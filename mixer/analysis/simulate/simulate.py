"""Plans a whole run, one plan after the other, as the trainer's loop does."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mixer.analysis.simulate.losses import NoLosses, RecordedLosses, Seen
from mixer.analysis.simulate.parts import Evaluations, Parts, PlannedLearningRate, parts_of
from mixer.analysis.simulate.simulated import Columns, Simulated, summed_up
from mixer.analysis.simulate.tokens import PlannedTokens
from mixer.analysis.simulate.writer import Writer
from mixer.mixture.plan import Plan
from mixer.recipe.recipe import Recipe
from mixer.utils.arrays import Int64Array


def simulate(
    recipe: Recipe, num_ranks: int = 1, losses: str | Path | None = None, output: str | Path | None = None
) -> Simulated:
    """Plans a whole run without a model.

    Args:
        recipe: The recipe.
        num_ranks: Number of processes of the launch.
        losses: The output folder of a run whose losses, and gradients if it measured them, adaptive rules observe;
            `None` holds the weights and the batch size that they start with.
        output: A folder for the simulation's ledger; `None` writes none.

    Returns:
        The planned run.

    Raises:
        ValueError: If the recipe's run cannot be planned, the other run lacks observations that the rules need, or
            the output folder holds a trained run.
    """
    parts = parts_of(recipe, num_ranks)
    source = NoLosses(parts.mixing) if losses is None else RecordedLosses(losses, parts.mixing)
    run = PlannedRun(parts, source, output)
    run.plan_all()
    return summed_up(parts, run.columns, run.tokens.estimated, run.learning_rate.is_known, source.note)


class PlannedRun:
    """A run that is planned step after step.

    Args:
        parts: The objects that plan it.
        source: Source of the observations.
        output: A folder for a ledger; `None` writes none.

    Attributes:
        columns: The plans so far.
        tokens: Counts the tokens of plans.
        learning_rate: The planned learning rate.
    """

    def __init__(self, parts: Parts, source: NoLosses | RecordedLosses, output: str | Path | None):
        self._parts, self._source = parts, source
        mixing = self._mixing = parts.mixing
        is_needed = mixing.policy.unit == "tokens" or mixing.clock.budget.tokens is not None
        self.tokens = PlannedTokens(parts.streams, mixing.planner, is_needed or "tokens" in mixing.schedule.needs)
        self.learning_rate = PlannedLearningRate(parts.args, mixing.clock.planned_steps)
        self.columns = Columns()
        self._evaluations = Evaluations(parts.args, mixing.clock)
        self._writer = None if output is None else Writer(Path(output), parts, source.note)

    def plan_all(self) -> None:
        """Plans the run to its end."""
        if self._evaluations.at_start:
            self._evaluate()
        for plan in self._plans():
            self._count(plan)
            if self._evaluations.is_due():
                self._evaluate()
        if self._writer is not None:
            self._writer.finish(self._source.note)

    def _plans(self) -> Iterator[Plan]:
        """Gives the plans up to the end of the budget or of the streams."""
        mixing, clock = self._mixing, self._mixing.clock
        while clock.progress < 1.0 and not mixing.is_exhausted:
            if clock.counts_steps and clock.num_epochs_done >= clock.planned_epochs:
                return
            plan = mixing.next_plan()
            if plan is not None:  # else the rest of an epoch was dropped
                yield plan

    def _count(self, plan: Plan) -> None:
        mixing = self._mixing
        rate, factor = self.learning_rate.of(mixing), mixing.learning_rate_factor
        tokens = self.tokens.of(plan)
        mixing.check_tokens(plan, tokens)
        seen = self._source.after(plan, mixing.seen, tokens)
        for follow in self._parts.followers:
            follow(plan)
        self._observe(plan, tokens, seen)
        self.columns.append(plan, mixing.clock.progress, rate)
        if self._writer is not None:
            self._writer.record(plan, tokens, seen, rate, factor)

    def _observe(self, plan: Plan, tokens: Int64Array, seen: Seen) -> None:
        is_seen = "loss" in self._mixing.policy.needs
        self._mixing.observe(
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
        step = self._mixing.clock.step
        self.columns.evaluation_steps.append(step)
        losses = self._source.evaluation(step, self._mixing.seen)
        losses = {name: loss for name, loss in losses.items() if name in self._parts.evaluated}
        if losses:
            self._mixing.observe_evaluation(losses)
            if self._writer is not None:
                self._writer.record_evaluation(step, losses)
