"""Laws of few numbers for how losses depend on the mixture, fitted by ridge regression."""

import itertools
from collections.abc import Callable

import numpy as np

from mixer.analysis.fit.replicates import Groups
from mixer.analysis.fit.ridge import Ridge, fit_ridge
from mixer.utils.arrays import FloatArray

Predictor = Callable[[FloatArray], FloatArray]
Regressor = Callable[[FloatArray, FloatArray, Groups], Predictor]  # of mixtures, losses and which runs are of one

MOST_STREAMS_QUADRATIC = 100  # 5,050 terms

# How far the floor of an exponential law lies below the least loss seen, in ranges of the losses seen: from a steep
# curve to one that is next to straight.
_GAPS = np.logspace(-1.5, 1.5, 13)


def fit_linear(mixtures: FloatArray, losses: FloatArray, groups: Groups) -> Predictor:
    """Fits `L_k(w) = a_k + Σ_j b_kj w_j`, the linear regression that RegMix (2407.01492) compares with.

    Args:
        mixtures: `[num_runs, num_streams]` on the simplex.
        losses: `[num_runs, num_losses]`.
        groups: `[num_runs]`: a number for each mixture, with which its runs are left out to choose the penalty.

    Returns:
        The law: losses `[num_mixtures, num_losses]` of mixtures `[num_mixtures, num_streams]`.
    """
    return _fit_polynomial(mixtures, losses, groups, lambda points: points)


def fit_quadratic(mixtures: FloatArray, losses: FloatArray, groups: Groups) -> Predictor:
    """Fits `L_k(w) = a_k + Σ_j b_kj w_j + Σ_{i<j} c_kij w_i w_j`.

    The quadratic polynomial for mixtures of Scheffé (Journal of the Royal Statistical Society B, 1958): on the simplex
    squares are no terms of their own.

    Args:
        mixtures: `[num_runs, num_streams]` on the simplex.
        losses: `[num_runs, num_losses]`.
        groups: `[num_runs]`: a number for each mixture, with which its runs are left out to choose the penalty.

    Returns:
        The law; see `fit_linear`.

    Raises:
        ValueError: If there are so many streams that the terms would fill the memory.
    """
    num_streams = mixtures.shape[1]
    if num_streams > MOST_STREAMS_QUADRATIC:
        raise ValueError(
            f"regressor='quadratic' can be had for up to {MOST_STREAMS_QUADRATIC} streams, got {num_streams}: take "
            "'linear', 'exponential' or 'gaussian-process'."
        )
    pairs = np.array(list(itertools.combinations(range(num_streams), 2)), dtype=np.intp).reshape(-1, 2)

    def terms(points: FloatArray) -> FloatArray:
        return np.concatenate([points, points[:, pairs[:, 0]] * points[:, pairs[:, 1]]], axis=1)

    return _fit_polynomial(mixtures, losses, groups, terms)


def fit_exponential(mixtures: FloatArray, losses: FloatArray, groups: Groups) -> Predictor:
    """Fits `L_k(w) = c_k + exp(a_k + Σ_j t_kj w_j)`, the law of Data Mixing Laws (2403.16952).

    Here the floor `c_k` is the one of a grid below the least loss seen that, with a ridge penalty on `t_k`, has the
    least error in the loss itself of a mixture that is left out: no start to choose, and few runs do not run away
    with it.

    Args:
        mixtures: `[num_runs, num_streams]` on the simplex.
        losses: `[num_runs, num_losses]`.
        groups: `[num_runs]`: a number for each mixture, with which its runs are left out to choose the penalty.

    Returns:
        The law; see `fit_linear`.
    """
    least, width = losses.min(axis=0), np.ptp(losses, axis=0)
    floors = least - _GAPS[:, None] * np.where(width > 0.0, width, 1.0)  # [num_gaps, num_losses]
    num_gaps, num_losses = floors.shape
    logs = np.log(losses[:, None, :] - floors).reshape(len(losses), -1)
    ridge = fit_ridge(mixtures, logs, groups)
    with np.errstate(over="ignore"):  # what is left out may be predicted to be anything: it is not chosen then
        left_out = floors + np.exp(ridge.left_out.reshape(-1, len(losses), num_gaps, num_losses))
        squares = ((left_out - losses[:, None, :]) ** 2).mean(axis=1)
    best = squares.reshape(-1, num_losses).argmin(axis=0)  # over penalties and gaps
    choice, gap = np.divmod(best, num_gaps)
    targets = gap * num_losses + np.arange(num_losses)
    floor = floors[gap, np.arange(num_losses)]

    def predict(points: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            predicted: FloatArray = floor + np.exp(ridge.predict(points, choice, targets))
        return predicted

    return predict


def _fit_polynomial(mixtures: FloatArray, losses: FloatArray, groups: Groups, terms: Predictor) -> Predictor:
    ridge: Ridge = fit_ridge(terms(mixtures), losses, groups)
    choice = ((ridge.left_out - losses) ** 2).mean(axis=1).argmin(axis=0)
    targets = np.arange(losses.shape[1])
    return lambda points: ridge.predict(terms(points), choice, targets)
