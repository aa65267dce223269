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

from mixer.policies.shared.mixing_law import MixingLaw
from mixer.utils.arrays import FloatArray

Groups = NDArray[np.intp]
# Gives losses [num_mixtures, num_losses] of mixtures [num_mixtures, num_streams].
Predictor = Callable[[FloatArray], FloatArray]
Regressor = Callable[[FloatArray, FloatArray], Predictor]  # of mixtures and losses of runs

_MOST_FOLDS = 40


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


REGRESSORS: dict[str, Regressor] = {"exponential": MixingLaw.fit, "gaussian-process": fit_gaussian_process}


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
