"""The measure that runs are judged by."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from mixer.ledger.evaluated_losses import mean_loss
from mixer.policies.objective import Objective
from mixer.tools.records.run import Run


class Measure(NamedTuple):
    """The measure that runs are judged by."""

    words: str
    values: dict[str, float]
    greater_is_better: bool = False

    def of(self, run: Run) -> float:
        """Gives the value of a run; NaN if it is unknown."""
        return self.values.get(run.name, math.nan)


def measure_of(runs: Sequence[Run], objective: Objective | None) -> Measure | None:
    """Chooses the measure: the declared objective, else the mean validation loss of the sets that all runs have."""
    if objective is not None:
        values = {run.name: objective.evaluated(*run.results()) for run in runs}
        words, greater = f"the objective, {objective.in_words},", objective.greater_is_better
    else:
        sets = [name for name in runs[0].evaluations if all(name in run.evaluations for run in runs)]
        losses = {run.name: run.losses() for run in runs}
        values = {run.name: mean_loss({n: losses[run.name][n] for n in sets}, run.eval_weights) for run in runs}
        words, greater = f"the validation loss{', the mean of all sets,' if len(sets) > 1 else ''}", False
    values = {name: value for name, value in values.items() if not math.isnan(value)}
    return Measure(words, values, greater) if values else None


def course_of(run: Run, objective: Objective | None) -> pd.DataFrame:
    """Follows the measure of a run: a row per evaluation with step, epoch, samples and value; see `measure_of`."""
    first = min(run.evaluations.values(), key=len)
    values = [
        run.mean_loss(place) if objective is None else objective.evaluated(*run.results(place))
        for place in range(len(first))
    ]
    return first[["step", "epoch", "samples"]].assign(value=values)


def shares_of(run: Run, column: str = "count") -> dict[str, float]:
    """Returns the share of all samples by stream; of all tokens or labels for those columns."""
    counts = {name: int(own[column].sum()) for name, own in run.stream_columns.items()}
    total = sum(counts.values()) or 1
    return {name: count / total for name, count in counts.items()}
