"""What a report says first: where the objective of each run ended."""

import math
from collections.abc import Sequence

import numpy as np

from mixer.analysis.report.run import Run
from mixer.policies.objective import Objective
from mixer.utils.text import listed


def headline(runs: Sequence[Run]) -> list[str]:
    """Compares the runs by the objective that the first of them with one declared.

    Args:
        runs: The runs; the others are compared with the first.

    Returns:
        Sentences; none without an objective, or if no run evaluated its targets.
    """
    objective = next((run.objective for run in runs if run.objective is not None), None)
    values = {} if objective is None else {run.name: objective_value(run, objective, -1) for run in runs}
    values = {name: value for name, value in values.items() if not math.isnan(value)}
    if objective is None or not values:
        return []
    first, base = next(iter(values.items()))
    others = [
        f"{value:.3f} in {name} ({100.0 * (value / base - 1.0):+.1f} %)"
        for name, value in values.items()
        if name != first and base
    ]
    better = "greater" if objective.greater_is_better else "lower"
    parts = [f"The objective, {objective.in_words}, ended at {listed([f'{base:.3f} in {first}', *others])}."]
    if others:
        parts.append(f"{better.capitalize()} is better; another seed alone moves it too, often by a per cent or more.")
    elif not math.isnan(began := objective_value(runs[0], objective, 0)):
        parts = [f"The objective, {objective.in_words}, went from {began:.3f} to {base:.3f}."]
    return [*parts, *(text for run in runs for text in _broken_bounds(run, objective))]


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


def _broken_bounds(run: Run, objective: Objective) -> list[str]:
    found = []
    for name, bound in objective.bounds.items():
        losses = run.evaluations[name]["loss"].to_numpy() if name in run.evaluations else np.ones(1)
        ratio = float(losses[-1] / losses[0])
        if ratio > bound:
            found.append(
                f"In {run.name} the loss of {name} ended at {ratio:.3g} times that of the first evaluation: above its "
                f"bound of {bound:g}."
            )
    return found
