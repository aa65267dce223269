"""Regressions of losses on mixtures: an exponential law and a Gaussian process."""

import importlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.utils.arrays import FloatArray

Groups = NDArray[np.intp]
# Gives losses [num_mixtures, num_losses] of mixtures [num_mixtures, num_streams].
Predictor = Callable[[FloatArray], FloatArray]
Regressor = Callable[[FloatArray, FloatArray], Predictor]  # of mixtures and losses of runs
Solver = Callable[[NDArray[np.intp], NDArray[np.intp]], tuple[FloatArray, FloatArray]]

# Distances of the floor of the exponential law from the least loss, in ranges of the losses: steep to almost linear.
_GAPS = np.logspace(-1.5, 1.5, 13)
_MOST_FOLDS = 40
# Ridge penalties, as multiples of the largest squared singular value: from almost none to almost a constant.
_PENALTIES = np.logspace(-8, 1, 19)


def library(name: str) -> Any:
    """Imports a library of the extra `fit`.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"A fit needs {error.name}, which is not installed: pip install 'adaptive-mixer[fit]'."
        ) from error


def fit_exponential(mixtures: FloatArray, losses: FloatArray) -> Predictor:
    """Fits `L_k(w) = c_k + exp(a_k + Σ_j t_kj w_j)`, the law of Data Mixing Laws (Ye et al., 2403.16952).

    The floor `c_k` and a ridge penalty on `t_k` are the pair of a grid with the least squared error of the loss on
    mixtures left out. A grid needs no starting point, and the penalty keeps a few runs from being fitted exactly.

    Args:
        mixtures: `[num_runs, num_streams]` on the simplex. Runs of one mixture are left out together.
        losses: `[num_runs, num_losses]`.

    Returns:
        The law. It is convex in the mixture.
    """
    points, groups, counts = np.unique(mixtures, axis=0, return_inverse=True, return_counts=True)
    values = np.stack([losses[groups == group].mean(axis=0) for group in range(len(points))])
    width = np.ptp(values, axis=0)
    floors = values.min(axis=0) - _GAPS[:, None] * np.where(width > 0.0, width, 1.0)  # [num_gaps, num_losses]
    logs = np.log(values[:, None] - floors)
    left_out, solve = fit_ridge(points, logs.reshape(len(points), -1), counts)
    left_out = left_out.reshape(-1, *logs.shape)  # [num_penalties, num_mixtures, num_gaps, num_losses]
    with np.errstate(over="ignore"):  # an infinite error is never the least
        squares = np.average((floors + np.exp(left_out) - values[:, None]) ** 2, axis=1, weights=counts)
    penalty, gap = np.unravel_index(squares.reshape(-1, losses.shape[1]).argmin(axis=0), squares.shape[:2])
    columns = np.arange(losses.shape[1])
    target = gap * losses.shape[1] + columns
    floor, (intercepts, slopes) = floors[gap, columns], solve(penalty, target)

    def predict(points: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            return np.asarray(floor + np.exp(intercepts + points @ slopes))

    return predict


def fit_ridge(features: FloatArray, targets: FloatArray, counts: NDArray[np.intp]) -> tuple[FloatArray, Solver]:
    """Fits ridge regressions with each of the penalties; the intercept has none.

    Leaving out an observation divides its residual by one less its leverage (PRESS, Allen, Technometrics 1974).

    Args:
        features: `[num_observations, num_features]`.
        targets: `[num_observations, num_targets]`.
        counts: `[num_observations]`: how often each observation counts.

    Returns:
        Predictions for observations left out `[num_penalties, num_observations, num_targets]`, and a function that
        gives intercepts `[num_chosen]` and slopes `[num_features, num_chosen]` of numbers of penalties and targets.
    """
    weights = counts / counts.sum()
    roots = np.sqrt(weights)[:, None]
    feature_means, target_means = weights @ features, weights @ targets
    left, values, right = np.linalg.svd(roots * (features - feature_means), full_matrices=False)
    gains = values / (values**2 + _PENALTIES[:, None] * (values[0] ** 2 or 1.0))  # [num_penalties, rank]
    parts = left.T @ (roots * (targets - target_means))
    centred = (left / roots * (gains * values)[:, None]) @ parts
    leverages = weights + (gains * values) @ (left**2).T  # [num_penalties, num_observations]
    residuals = targets - target_means - centred
    left_out = targets - residuals / np.maximum(1.0 - leverages, 1e-12)[:, :, None]

    def solve(penalties: NDArray[np.intp], chosen: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        slopes = right.T @ (gains[penalties].T * parts[:, chosen])
        return target_means[chosen] - feature_means @ slopes, slopes

    return left_out, solve


def fit_gaussian_process(mixtures: FloatArray, losses: FloatArray) -> Predictor:
    """Fits a Gaussian process with a squared-exponential kernel and noise.

    Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1; hyperparameters by marginal
    likelihood. Streams share one length scale and losses one kernel, since few runs cannot tell several apart.

    Args:
        mixtures: `[num_runs, num_streams]` on the simplex.
        losses: `[num_runs, num_losses]`.

    Returns:
        The mean of the process.
    """
    processes = library("sklearn.gaussian_process")
    kernels = processes.kernels
    kernel = kernels.ConstantKernel(1.0, (1e-2, 1e3)) * kernels.RBF(0.5, (0.05, 10.0))
    kernel += kernels.WhiteKernel(1e-2, (1e-8, 10.0))
    process = processes.GaussianProcessRegressor(kernel, normalize_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hyperparameter at its bound is a valid answer: the left-out error judges it
        process.fit(mixtures, losses)
    return lambda points: np.asarray(process.predict(points), dtype=np.float64).reshape(len(points), -1)


def fit_constant(_: FloatArray, losses: FloatArray) -> Predictor:
    """Predicts the mean for every mixture: the baseline of a fit."""
    return lambda points: np.tile(losses.mean(axis=0), (len(points), 1))


REGRESSORS: dict[str, Regressor] = {"exponential": fit_exponential, "gaussian-process": fit_gaussian_process}


@dataclass(frozen=True)
class LeftOut:
    """Predictions of the objective for runs that were left out of the fit.

    Args:
        predicted: `[num_runs]`.
        seen: `[num_runs]`: the recorded objective.
    """

    predicted: FloatArray
    seen: FloatArray

    @property
    def error(self) -> float:
        """Root mean squared error."""
        return float(np.sqrt(np.mean((self.predicted - self.seen) ** 2)))

    @property
    def rank_correlation(self) -> float:
        """Spearman's rank correlation; NaN if predictions or recorded values are constant."""
        if np.ptp(self.predicted) == 0.0 or np.ptp(self.seen) == 0.0:
            return math.nan
        return float(pd.Series(self.predicted).rank().corr(pd.Series(self.seen).rank()))


def leave_out(
    mixtures: FloatArray,
    losses: FloatArray,
    groups: Groups,
    fit: Regressor,
    objective: Callable[[FloatArray], FloatArray],
) -> LeftOut:
    """Predicts every mixture by a fit to the others; more than 40 mixtures are left out in 40 parts.

    Args:
        mixtures: `[num_runs, num_streams]`.
        losses: `[num_runs, num_losses]`.
        groups: `[num_runs]`: number of the mixture. Runs of one mixture are left out together.
        fit: The regression. All its choices are made without the runs left out.
        objective: The objective.
    """
    folds = groups % min(int(groups.max()) + 1, _MOST_FOLDS)
    predicted = np.empty(len(mixtures))
    for fold in range(int(folds.max()) + 1):
        is_out = folds == fold
        predicted[is_out] = objective(fit(mixtures[~is_out], losses[~is_out])(mixtures[is_out]))
    return LeftOut(predicted, objective(losses))
