"""The measure that runs are judged by."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from mixer.ledger.evaluated_losses import mean_loss
from mixer.policies.objective import Objective
from mixer.tools.report.run import Run


class Measure(NamedTuple):
    """The measure that runs are judged by."""

    words: str
    values: dict[str, float]
    greater_is_better: bool = False


def measure_of(runs: Sequence[Run], objective: Objective | None) -> Measure | None:
    """Chooses the measure: the declared objective, else the mean validation loss of the sets that all runs have."""
    if objective is not None:
        values = {run.name: objective_value(run, objective, -1) for run in runs}
        words, greater = f"the objective, {objective.in_words},", objective.greater_is_better
    else:
        sets = [name for name in runs[0].evaluations if all(name in run.evaluations for run in runs)]
        values = {run.name: _mean_of_sets(run, sets) for run in runs}
        words, greater = f"the validation loss{', the mean of all sets,' if len(sets) > 1 else ''}", False
    values = {name: value for name, value in values.items() if not math.isnan(value)}
    return Measure(words, values, greater) if values else None


def _mean_of_sets(run: Run, sets: Sequence[str]) -> float:
    """Averages the validation losses of some sets at their last evaluation."""
    return mean_loss({name: float(run.evaluations[name]["loss"].iloc[-1]) for name in sets}, run.eval_weights)


def objective_value(run: Run, objective: Objective, place: int) -> float:
    """Computes an objective at an evaluation of a run.

    Args:
        run: The run.
        objective: The objective, its own or another run's.
        place: 0 for the first evaluation, −1 for the last.

    Returns:
        The value; NaN if a target was not evaluated.
    """
    losses = {name: float(rows["loss"].iloc[place]) for name, rows in run.evaluations.items()}
    metrics = {
        name: {str(metric): float(own["value"].iloc[place]) for metric, own in rows.groupby("metric")}
        for name, rows in run.metrics.items()
    }
    return objective.evaluated(losses, metrics)


def course_of(run: Run, objective: Objective | None) -> pd.DataFrame:
    """Follows the measure of a run: a row per evaluation with step, epoch, samples and value; see `measure_of`."""
    first = min(run.evaluations.values(), key=len)
    losses = {name: rows["loss"].tolist() for name, rows in run.evaluations.items()}
    values = [
        mean_loss({name: own[place] for name, own in losses.items()}, run.eval_weights)
        if objective is None
        else objective_value(run, objective, place)
        for place in range(len(first))
    ]
    return first[["step", "epoch", "samples"]].assign(value=values)


def shares_of(run: Run, column: str = "count") -> dict[str, float]:
    """Returns the share of all samples by stream; of all tokens or labels for those columns."""
    counts = {name: int(rows[column].sum()) for name, rows in run.streams.items()}
    total = sum(counts.values()) or 1
    return {name: count / total for name, count in counts.items()}
