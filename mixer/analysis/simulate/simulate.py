"""Plans a whole run, one plan after the other, as the trainer's loop does."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from mixer.analysis.simulate.held_rules import hold_rules
from mixer.analysis.simulate.planned_parts import Parts, evaluates
from mixer.analysis.simulate.simulated import Row, Simulated
from mixer.analysis.simulate.tokens import PlannedLabels, PlannedTokens
from mixer.ledger.description import describe_run
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.loading.learning_rate import new_learning_rate
from mixer.loading.loaded_step import StepCounts, StepResult
from mixer.measurements import LearningRate
from mixer.mixture.counted_units import check_counted, option_counting
from mixer.mixture.step_plan import StepPlan
from mixer.recipe.recipe import Recipe
from mixer.utils.arrays import Int64Array
from mixer.utils.files import read_json


def simulate(recipe: Recipe, num_ranks: int = 1, output: str | Path | None = None) -> Simulated:
    """Plans a whole run without a model; adaptive rules hold the weights and the batch size that they start with.

    Args:
        recipe: The recipe.
        num_ranks: Number of processes of the launch.
        output: A folder for the simulation's ledger; `None` writes none.

    Returns:
        The planned run.

    Raises:
        ValueError: If the recipe's run cannot be planned, or the output folder holds a trained run.
    """
    parts = Parts(recipe, num_ranks)
    return PlannedRun(recipe, parts, hold_rules(parts.mixing), output).planned()


class PlannedRun:
    """A run that is planned step after step.

    Args:
        recipe: Its recipe.
        parts: The objects that plan it.
        source: A sentence on the source of the losses.
        output: A folder for a ledger; `None` writes none.
    """

    def __init__(self, recipe: Recipe, parts: Parts, source: str, output: str | Path | None):
        self._parts, self._source = parts, source
        mixing = self._mixing = parts.mixing
        is_needed = mixing.policy.unit == "tokens" or mixing.clock.budget.tokens is not None
        is_needed |= mixing.schedule.unit == "tokens" or any(one.max_tokens is not None for one in parts.streams)
        self._tokens = PlannedTokens(parts.streams, mixing.planner, is_needed)
        user = option_counting(mixing, "labels")
        self._labels = None if user is None else PlannedLabels(recipe, parts.streams, user)
        self._rate_factor = new_learning_rate(parts.args, mixing.clock.planned_steps).at
        self._rows: list[Row] = []
        self._evaluation_steps: list[int] = []
        self._writer = None if output is None else _Writer(Path(output), parts, source)

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
            self._writer.finish()
        return Simulated(self._parts, self._rows, self._evaluation_steps, self._tokens.estimated, self._source)

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
        mixing.observe(plan, tokens, {LearningRate: self._rate_factor} if is_asked else {}, labels=labels)
        self._rows.append((plan.counts, plan.weights, plan.batch_size, mixing.clock.progress, rate))
        if self._writer is not None:
            self._writer.record(plan, tokens, labels, rate, factor)

    def _evaluate(self) -> None:
        self._evaluation_steps.append(self._mixing.clock.step)


class _Writer:
    """Writes planned steps as a trainer writes trained ones, without losses.

    Args:
        folder: The output folder.
        parts: The objects that plan the run.
        source: A sentence on the source of the losses, for `simulated` in `ledger.json`.

    Raises:
        ValueError: If the folder holds a trained run.
    """

    def __init__(self, folder: Path, parts: Parts, source: str):
        note = folder / "ledger" / "ledger.json"
        if note.is_file() and "simulated" not in read_json(note):
            raise ValueError(
                f"output: {folder} holds a run that was trained, whose ledger would make way for the simulation's. "
                "Give another folder."
            )
        mixing = parts.mixing
        self.ledger = Ledger(folder / "ledger", is_writer=True, interval_steps=parts.ledger_interval_steps)
        description = {
            "streams": list(mixing.names),
            "policy": mixing.policy.name,
            "batch_size": mixing.schedule.name,
            "run": describe_run(parts.streams, mixing, parts.options, parts.args.world_size),
            "simulated": source,
        }
        self.ledger.begin(None, description)
        self._recorder = Recorder(mixing, self.ledger, reads_at_once=True)
        self._recorder.record_start()

    def record(
        self,
        plan: StepPlan,
        tokens: Int64Array,
        labels: Int64Array | None,
        learning_rate: float,
        factor: float,
    ) -> None:
        """Writes a step, after the controller has observed it.

        Args:
            plan: Its plan.
            tokens: int64 `[num_streams]`: its tokens.
            labels: int64 `[num_streams]`: its labels; `None` if nothing counts them.
            learning_rate: Its learning rate.
            factor: Factor of its batch size on the learning rate.
        """
        sums = torch.from_numpy(np.append(np.zeros(len(tokens)), math.nan))  # no losses, of no items
        counts = StepCounts(np.zeros_like(tokens), tokens, labels=labels)
        self._recorder.record(StepResult(plan, counts, sums, learning_rate, factor), {}, None)

    def finish(self) -> None:
        """Seals the ledger."""
        self._recorder.flush()
        self.ledger.finish()
