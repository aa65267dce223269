"""Mixtures and losses of recorded runs that can be compared."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.policies.contract import UNITS, Unit
from mixer.tools.analysis.fit.constraints import Constraints
from mixer.tools.analysis.fit.fitted import FittedMixture
from mixer.tools.analysis.fit.mixture import fit_mixture, group_runs
from mixer.tools.analysis.fit.recipes import check_recipes
from mixer.tools.console import Result
from mixer.tools.records.run import Run
from mixer.tools.records.runs import run_names
from mixer.utils.errors import require

_STEADY = 0.02
_TOLERANCE = 0.05
_LEAVE = "Leave these runs out."
_HINT = "Leave these runs out, or allow it with --allow-different-budgets."
_EVALUATE = (
    "Record runs that evaluate at their end (training.eval_strategy: steps, with eval_steps that divide the run)."
)


class FittedRun:
    """The record of a run.

    Args:
        folder: Its output folder.
        name: Its name in messages.
        unit: Unit of its mixture and budget.

    Attributes:
        amounts: Samples or tokens that it trained on, by stream.
        losses: Losses by name; NaN where one is not finite.
        budget: Samples or tokens in all.
        evaluated_at: Samples or tokens before the evaluation of the losses.
        progress: Fraction of its budget that is done.
        requested: Mean shares that the policy requested, a row for each stream, in columns for samples, and for tokens
            or labels if it mixes by these.
        objective: The objective that it declared, or `None`.
        is_steady: Whether its mixture stayed the same, in one of these.

    Raises:
        ValueError: If the folder holds no run, or the run has no step or counted nothing of the unit.
    """

    def __init__(self, folder: Path, name: str, unit: Unit):
        run = Run(folder)
        self.folder, self.name = folder, name
        self.amounts = pd.Series(run.arrays["count" if unit == "samples" else unit].sum(axis=0), list(run.streams))
        require(bool(self.amounts.sum() > 0), "unit", f"one that {folder} has counted", unit)
        self.losses, step = _evaluated(run)
        # What the policy requests in its own unit is the same for every seed; the samples that it becomes are not.
        requested = {"samples": np.nan_to_num(run.arrays["weight"])}
        if run.unit != "samples":  # without the streams that are not there
            shares = np.where(requested["samples"] > 0.0, np.nan_to_num(run.arrays["policy_weight"]), 0.0)
            requested[run.unit] = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
        self.budget = float(run.clock[unit].iloc[-1])
        self.evaluated_at = float(run.clock[unit].where(run.clock["step"] <= step, 0).max())
        self.progress = float(run.clock["progress"].iloc[-1])
        means = {kind: shares.mean(axis=0) for kind, shares in requested.items()}
        self.requested = pd.DataFrame(means, list(run.streams)).reindex(columns=UNITS)
        self.objective = run.objective
        self.is_steady = any(np.ptp(shares, axis=0).max() <= _STEADY for shares in requested.values())


class RecordedRuns(Result):
    """Mixtures and losses of finished runs, by their ledgers.

    Args:
        folders: Output folders of trainers.
        unit: Unit of the mixtures and budgets.
        allow_different_budgets: Whether runs may differ in their length and last evaluation, or stop early.
        allow_different_recipes: Whether recipes of `mixer train` may differ in more than the mixture.
        asked: For each run, weights by stream that it was asked for, in place of the samples that it trained on: what a
            policy around them, or the end of a stream, made of them is then part of the loss.

    Attributes:
        runs: Names of the runs.
        folders: Their folders.
        streams: Names of the streams, or of those that were asked for.
        loss_names: Names of the losses: streams, and other evaluation sets that every run has.
        mixtures: `[num_runs, num_streams]`: samples or tokens that each run trained on, or what was asked for.
        losses: `[num_runs, num_losses]`; NaN where a run has none.
        groups: `[num_runs]`: number of the mixture that the policy requested.
        objective: The objective that all runs declared; else `None`.
        notes: Remarks on the runs for readers of the fit, in sentences.

    Raises:
        ValueError: If a folder holds no run or appears twice, runs differ in streams, budgets or recipes, or were not
            evaluated at their end.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        unit: Unit = "samples",
        allow_different_budgets: bool = False,
        allow_different_recipes: bool = False,
        asked: Sequence[Mapping[str, float]] | None = None,
    ):
        names = run_names(folders)
        runs = [FittedRun(folder, name, unit) for folder, name in zip(folders, names, strict=True)]
        self.runs, self.folders = tuple(run.name for run in runs), tuple(folders)
        self.streams = _common_streams(runs)
        if not allow_different_budgets:
            _check_budgets(runs, unit)
        _check_evaluated(runs, allow_early=allow_different_budgets)
        recipe_notes = check_recipes({run.name: run.folder for run in runs}, allow_different_recipes)
        self.loss_names = tuple(_common_losses(runs, self.streams))
        self.mixtures = np.array([run.amounts.reindex(self.streams) for run in runs], dtype=np.float64)
        self.losses = np.array([run.losses.reindex(self.loss_names) for run in runs], dtype=np.float64)
        requested = [[run.requested.loc[list(self.streams), kind] for run in runs] for kind in UNITS]
        self.groups = group_runs(*map(np.array, requested))
        if asked is not None:
            self.streams = tuple(asked[0])
            self.mixtures = np.array([[weights[name] for name in self.streams] for weights in asked])
            self.groups = group_runs(self.mixtures)
        declared = [run.objective for run in runs]
        self.objective = declared[0] if all(objective == declared[0] for objective in declared) else None
        self.notes = [*_notes(runs, self.streams, self.loss_names), *recipe_notes]


def fit_runs(recorded: RecordedRuns, constraints: Constraints, objective: str | None = None) -> FittedMixture:
    """Fits runs by an objective made of their losses, or by the one that they declared, which may be a metric.

    Args:
        recorded: The runs.
        constraints: Bounds of the mixture.
        objective: The objective; `None` for the declared one, or the average if there is none.
    """
    declared, fit = recorded.objective, partial(fit_mixture, recorded.mixtures, constraints=constraints)
    fit = partial(fit, streams=recorded.streams, runs=recorded.runs, groups=recorded.groups)
    if objective is not None or declared is None or declared.metric == "loss":
        chosen = (declared or "average") if objective is None else objective
        return fit(recorded.losses, chosen, loss_names=recorded.loss_names)
    values, name = [[objective_of(folder)] for folder in recorded.folders], declared.metric
    return fit(values, {name: 1.0}, loss_names=[name], greater_is_better=declared.greater_is_better)


def objective_of(folder: Path, is_start: bool = False) -> float:
    """Gives the objective of a run at its end, or by its first evaluation.

    Raises:
        ValueError: If it is not finite.
    """
    value = Run(folder).objective_value(0 if is_start else -1)
    hint = "Did the run diverge, or does compute_metrics not return its metric?"
    expected = f"declared, known and finite at the end of {folder}"
    require(bool(np.isfinite(value)), "objective", expected, value, hint)
    return value


def _evaluated(run: Run) -> tuple[pd.Series, int]:
    """Gives the losses of each set's last evaluation and the earliest step of those of streams (or of all sets)."""
    last = {name: int(rows["step"].iloc[-1]) for name, rows in run.evaluations.items()}
    of_streams = [step for name, step in last.items() if name in run.streams]
    return pd.Series(run.losses(), dtype=np.float64), min(of_streams or last.values(), default=0)


def _common_losses(runs: Sequence[FittedRun], streams: Sequence[str]) -> list[str]:
    """Names the losses to fit: those of streams that any run has, and of other sets that every run has."""
    counts = pd.Series([name for run in runs for name in run.losses.index]).value_counts()
    others = [name for name in runs[0].losses.index if name not in streams and counts[name] == len(runs)]
    names = [*(name for name in streams if name in counts.index), *others]
    require(bool(names), "runs", "evaluated on a stream", [], _EVALUATE)
    return names


def _notes(runs: Sequence[FittedRun], streams: Sequence[str], loss_names: Sequence[str]) -> list[str]:
    notes = []
    without = [name for name in streams if name not in loss_names]
    if without:
        notes.append(f"No run has a loss of {without}: the objective leaves them out.")
    unsteady = [run.name for run in runs if not run.is_steady]
    if unsteady:
        notes.append(
            f"The mixture changed over {', '.join(unsteady)}: the fit uses its mean. A fixed mixture of these shares "
            "may reach other losses, and runs of one policy count as several mixtures unless their means agree."
        )
    return notes


def _common_streams(runs: Sequence[FittedRun]) -> tuple[str, ...]:
    """Gives the names of the streams, in the order of the first run."""
    streams = tuple(str(name) for name in runs[0].amounts.index)
    others = [f"{run.name} has {sorted(run.amounts.index)}" for run in runs if set(run.amounts.index) != set(streams)]
    require(not others, "runs", f"of the streams {sorted(streams)}", others, _LEAVE)
    return streams


def _check_budgets(runs: Sequence[FittedRun], unit: Unit) -> None:
    """Refuses runs that stopped before their budget or differ in length."""
    short = [f"{run.name} ({run.progress:.0%})" for run in runs if run.progress < 1.0 - 1e-9]
    require(not short, "runs", "complete", short, _HINT)
    usual = float(np.median([run.budget for run in runs]))
    others = [f"{run.name} ({run.budget:,.0f})" for run in runs if abs(run.budget - usual) > _TOLERANCE * usual]
    require(not others, "runs", f"of {usual:,.0f} {unit}, the median, to {_TOLERANCE:.0%}", others, _HINT)


def _check_evaluated(runs: Sequence[FittedRun], allow_early: bool) -> None:
    """Refuses runs without an evaluation in the last 5 % of the run, or (`allow_early`) after the first step."""
    evaluated = [run for run in runs if len(run.losses)]
    untrained = [run.name for run in evaluated if run.evaluated_at == 0.0]
    require(not untrained, "runs", "evaluated after their first step", untrained, _EVALUATE)
    parts = {run.name: run.evaluated_at / run.budget for run in evaluated}
    early = [f"{name} ({part:.0%})" for name, part in parts.items() if part < 1.0 - _TOLERANCE]
    hint = f"{_EVALUATE} Or allow it with --allow-different-budgets."
    require(allow_early or not early, "runs", f"evaluated in the last {_TOLERANCE:.0%} of the run", early, hint)
