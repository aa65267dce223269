"""Means and spreads over runs that differ by their seed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

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


def bound(left: Measured, right: Measured) -> float:
    """Gives half of the 95 % interval of a difference, with one spread for both; NaN for a run of each."""
    num_spare = left.num_runs + right.num_runs - 2
    if not (left.num_runs and right.num_runs and num_spare):
        return math.nan
    squares = sum((each.num_runs - 1) * each.spread**2 for each in (left, right) if each.num_runs > 1)
    return _t_95(num_spare) * math.sqrt(squares / num_spare * (1 / left.num_runs + 1 / right.num_runs))


def _t_95(num_spare: int) -> float:
    """Gives the quantile; of many degrees of freedom by the first terms of its series (Fisher and Cornish 1960)."""
    return _T_95[num_spare - 1] if num_spare <= len(_T_95) else 1.96 + 2.372 / num_spare + 2.82 / num_spare**2
