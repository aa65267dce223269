"""Plans a whole run, one plan after the other, as the trainer's loop does."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mixer.analysis.simulate.losses import NoLosses, RecordedLosses
from mixer.analysis.simulate.parts import Parts, evaluates, learning_rate_of, parts_of
from mixer.analysis.simulate.simulated import Row, Simulated, summed_up
from mixer.analysis.simulate.tokens import PlannedTokens
from mixer.analysis.simulate.writer import Writer
from mixer.mixture.plan import Plan
from mixer.recipe.recipe import Recipe


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
    return PlannedRun(parts, source, output).planned()


class PlannedRun:
    """A run that is planned step after step.

    Args:
        parts: The objects that plan it.
        source: Source of the observations.
        output: A folder for a ledger; `None` writes none.
    """

    def __init__(self, parts: Parts, source: NoLosses | RecordedLosses, output: str | Path | None):
        self._parts, self._source = parts, source
        mixing = self._mixing = parts.mixing
        is_needed = mixing.policy.unit == "tokens" or mixing.clock.budget.tokens is not None
        self._tokens = PlannedTokens(parts.streams, mixing.planner, is_needed or "tokens" in mixing.schedule.needs)
        self._rate_factor = learning_rate_of(parts.args, mixing.clock.planned_steps).at
        self._rows: list[Row] = []
        self._evaluation_steps: list[int] = []
        self._writer = None if output is None else Writer(Path(output), parts, source.note)

    def planned(self) -> Simulated:
        """Plans the run to its end and sums it up."""
        if self._parts.args.eval_on_start:
            self._evaluate()
        progress = 0.0
        for plan in self._plans():
            self._count(plan)
            if evaluates(self._parts.args, self._mixing.clock, progress):
                self._evaluate()
            progress = self._mixing.clock.progress
        if self._writer is not None:
            self._writer.finish(self._source.note)
        is_rate_known = not math.isnan(self._rate_factor(0.0))
        rows, estimated = self._rows, self._tokens.estimated
        return summed_up(self._parts, rows, self._evaluation_steps, estimated, is_rate_known, self._source.note)

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
        mixing, factor = self._mixing, self._mixing.learning_rate_factor
        rate = self._parts.args.learning_rate * self._rate_factor(mixing.clock.schedule_position)
        rate *= 1.0 if mixing.clock.counts_steps else factor
        tokens = self._tokens.of(plan)
        mixing.check_tokens(plan, tokens)
        seen = self._source.after(plan, mixing.seen, tokens)
        for follow in self._parts.followers:
            follow(plan)
        mixing.observe(
            plan,
            seen.losses if "loss" in mixing.policy.needs else np.full(len(tokens), np.nan),
            tokens,
            seen.loss,
            seen.gradient_norm,
            self._rate_factor,
            gradients=seen.gradients,
            update_norm=seen.update_norm,
            excess_losses=seen.compared.get("excess_loss"),
            losses_after=seen.compared.get("loss_after"),
        )
        self._rows.append((plan.counts, plan.weights, plan.batch_size, mixing.clock.progress, rate))
        if self._writer is not None:
            self._writer.record(plan, tokens, seen, rate, factor)

    def _evaluate(self) -> None:
        step = self._mixing.clock.step
        self._evaluation_steps.append(step)
        losses = self._source.evaluation(step, self._mixing.seen)
        losses = {name: loss for name, loss in losses.items() if name in self._parts.evaluated}
        if losses:
            self._mixing.observe_evaluation(losses)
            if self._writer is not None:
                self._writer.record_evaluation(step, losses)
