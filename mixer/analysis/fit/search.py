"""The best mixture among the combinations of the runs' mixtures."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mixer.analysis.fit.regressors import library
from mixer.utils.arrays import FloatArray

_NUM_STARTS = 5
_STEP = 1e-6
_PRECISION, _TOLERANCE = 1e-10, 1e-9


def search(mixtures: FloatArray, terms: Callable[[FloatArray], FloatArray], least_share: float = 0.0) -> FloatArray:
    """Minimises the largest of several predicted terms over the convex hull of the runs' mixtures.

    A fit to a few runs knows nothing outside of the hull. Sequential least squares (SLSQP) starts at the middle and at
    the runs that are predicted best, since the prediction of a Gaussian process may have several minima.

    Args:
        mixtures: `[num_runs, num_streams]` on the simplex.
        terms: Predicts `[num_mixtures, num_terms]` of mixtures `[num_mixtures, num_streams]`.
        least_share: Least share of every stream.

    Returns:
        `[num_streams]`: the mixture.

    Raises:
        ValueError: If no combination of the runs gives every stream the least share.
    """
    middle = np.full(len(mixtures), 1.0 / len(mixtures))
    if least_share > 0.0:
        middle = _minimise(mixtures, np.negative, 0.0, middle)  # the largest least share
        most = (middle @ mixtures).min()
        if most < least_share - _TOLERANCE:
            raise ValueError(
                f"least_share={least_share:g}: no mixture that the runs cover gives every stream as much; {most:.4f} "
                "is the most. Lower it, or record runs in which the scarce streams have more."
            )
    best = np.argsort(terms(mixtures).max(axis=1), kind="stable")[:_NUM_STARTS]
    starts = [middle, *np.eye(len(mixtures))[best]]
    weights = np.array([middle, *(_minimise(mixtures, terms, least_share, start) for start in starts)])
    points = weights @ mixtures
    points = points[points.min(axis=1) >= least_share - _TOLERANCE]
    return np.asarray(points[terms(points).max(axis=1).argmin()])


def _minimise(
    mixtures: FloatArray, terms: Callable[[FloatArray], FloatArray], least_share: float, start: FloatArray
) -> FloatArray:
    """Gives weights `[num_runs]` of the runs' mixtures; a variable above all terms stands for their largest."""

    def mixture(variables: FloatArray) -> FloatArray:
        return np.asarray(variables[:-1] @ mixtures / variables[:-1].sum())

    def slopes(variables: FloatArray) -> FloatArray:
        point = mixture(variables)
        values = terms(np.concatenate([point[None], point + _STEP * (mixtures - point)]))
        return np.column_stack([-(values[1:] - values[0]).T / _STEP, np.ones(values.shape[1])])

    constraints: list[dict[str, Any]] = [
        {"type": "eq", "fun": lambda variables: variables[:-1].sum() - 1.0},
        {"type": "ineq", "fun": lambda variables: variables[-1] - terms(mixture(variables)[None])[0], "jac": slopes},
    ]
    if least_share > 0.0:
        constraints.append({"type": "ineq", "fun": lambda variables: mixture(variables) - least_share})
    found = library("scipy.optimize").minimize(
        lambda variables: variables[-1],
        np.append(start, terms(start[None] @ mixtures).max()),
        jac=lambda variables: np.eye(len(variables))[-1],
        method="SLSQP",
        bounds=[(0.0, 1.0)] * len(mixtures) + [(None, None)],
        constraints=constraints,
        options={"ftol": _PRECISION, "maxiter": 200},
    )
    weights = np.clip(found.x[:-1], 0.0, None)
    return np.asarray(weights / weights.sum())
