"""The measure that runs are judged by, and its spread over seeds."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from mixer.analysis.report.run import Run
from mixer.ledger.evaluated_losses import mean_loss
from mixer.policies.objective import Objective

# Quantiles of Student's t for an interval of 95 %, by degrees of freedom from 1 on.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Measured(NamedTuple):
    """A measure over the runs of a configuration.

    Args:
        mean: Its mean.
        spread: Its standard deviation between seeds; NaN for one run.
        num_runs: Number of runs.
    """

    mean: float
    spread: float
    num_runs: int

    def text(self, form: str = "{:.3f}") -> str:
        """Formats mean and spread."""
        return form.format(self.mean) + ("" if math.isnan(self.spread) else f" ± {form.format(self.spread)}")


class Measure(NamedTuple):
    """The measure that runs are judged by."""

    words: str
    values: dict[str, float]
    greater_is_better: bool = False


def over_seeds(values: Sequence[float]) -> Measured:
    """Averages values of runs; NaN does not count."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return Measured(math.nan, math.nan, 0)
    return Measured(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else math.nan, len(known))


def paired_bound(differences: Sequence[float]) -> float:
    """Gives half of the 95 % interval of the mean of differences between pairs of runs; NaN for fewer than two."""
    found = over_seeds(differences)
    return _t_95(found.num_runs - 1) * found.spread / math.sqrt(found.num_runs) if found.num_runs > 1 else math.nan


def bound(one: Measured, other: Measured) -> float:
    """Gives half of the 95 % interval of a difference, with one spread for both; NaN for a run of each."""
    num_spare = one.num_runs + other.num_runs - 2
    if not (one.num_runs and other.num_runs and num_spare):
        return math.nan
    squares = sum((each.num_runs - 1) * each.spread**2 for each in (one, other) if each.num_runs > 1)
    return _t_95(num_spare) * math.sqrt(squares / num_spare * (1 / one.num_runs + 1 / other.num_runs))


def _t_95(num_spare: int) -> float:
    """Gives the quantile; of many degrees of freedom by the first terms of its series (Fisher and Cornish 1960)."""
    return _T_95[num_spare - 1] if num_spare <= len(_T_95) else 1.96 + 2.372 / num_spare + 2.82 / num_spare**2


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
