"""Plans a whole run, one plan after the other, as the trainer's loop does."""

from collections.abc import Iterator
from typing import Any

from mixer.loading.learning_rate import new_learning_rate
from mixer.measurements import Kind, LearningRate, Rates
from mixer.mixture.counted_units import check_counted, option_counting
from mixer.mixture.step_plan import StepPlan
from mixer.tools.analysis.simulate.planned_parts import Parts, hold_rules
from mixer.tools.analysis.simulate.simulated import Row, Simulated
from mixer.tools.analysis.simulate.tokens import PlannedLabels, PlannedTokens
from mixer.tools.recipe.recipe import Recipe


def simulate(recipe: Recipe, num_ranks: int = 1) -> Simulated:
    """Plans a whole run without a model; adaptive rules hold the weights and the batch size that they start with.

    Args:
        recipe: The recipe.
        num_ranks: Number of processes of the launch.

    Returns:
        The planned run.

    Raises:
        ValueError: If the recipe's run cannot be planned.
    """
    parts = Parts(recipe, num_ranks)
    return PlannedRun(recipe, parts, hold_rules(parts.mixing)).planned()


class PlannedRun:
    """A run that is planned step after step.

    Args:
        recipe: Its recipe.
        parts: The objects that plan it.
        source: A sentence on the source of the losses.
    """

    def __init__(self, recipe: Recipe, parts: Parts, source: str):
        self._parts, self._source = parts, source
        mixing = self._mixing = parts.mixing
        is_needed = mixing.policy.unit == "tokens" or mixing.clock.budget.tokens is not None
        is_needed |= mixing.schedule.unit == "tokens" or any(stream.max_tokens is not None for stream in parts.streams)
        self._tokens = PlannedTokens(parts.streams, mixing.planner, is_needed)
        user = option_counting(mixing, "labels")
        self._labels = None if user is None else PlannedLabels(recipe, parts.streams, user)
        self._rate_factor = new_learning_rate(parts.args, mixing.clock.planned_steps).at
        self._rows: list[Row] = []

    def planned(self) -> Simulated:
        """Plans the run to its end and sums it up."""
        for plan in self._plans():
            self._count(plan)
        return Simulated(self._parts, self._rows, self._tokens.estimated, self._source)

    def _plans(self) -> Iterator[StepPlan]:
        """Gives the plans up to the end of the budget or of the streams."""
        mixing, clock = self._mixing, self._mixing.clock
        while clock.progress < 1.0 and not mixing.is_exhausted:
            if clock.is_step_based and clock.num_epochs_done >= clock.planned_epochs:
                return
            plan = mixing.next_plan()
            if plan is not None:  # else the rest of an epoch was dropped
                yield plan

    def _count(self, plan: StepPlan) -> None:
        mixing, factor = self._mixing, self._mixing.learning_rate_factor
        rate = self._parts.args.learning_rate * self._rate_factor(mixing.clock.schedule_position)
        rate *= 1.0 if mixing.clock.is_step_based else factor
        tokens = self._tokens.of(plan)
        labels = None if self._labels is None else self._labels.of(plan)
        check_counted(mixing, plan, tokens, labels=labels)
        for follow in self._parts.followers:
            follow(plan)
        is_asked = any(isinstance(need, LearningRate) for need in (*mixing.policy.needs, *mixing.schedule.needs))
        measured: dict[Kind, Any] = {}
        if is_asked:
            positions = mixing.schedule_positions(plan, tokens, labels)
            measured[LearningRate] = Rates(*map(self._rate_factor, positions))
        mixing.observe(plan, tokens, measured, labels=labels)
        self._rows.append((plan.counts, plan.weights, plan.batch_size, mixing.clock.progress, rate))
