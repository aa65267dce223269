"""Regressions of an objective on mixtures: ours and those that it is compared with."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.swarms.swarms import Swarm
from mixer.tools.analysis.fit.fit_target import FitTarget
from mixer.tools.analysis.fit.prediction import Prediction, predict_objective
from mixer.utils.arrays import FloatArray

# Distances of the floor of the exponential law from the least loss, in ranges of the losses: steep to almost linear.
_GAPS = np.logspace(-1.5, 1.5, 13)
# Ridge penalties, as multiples of the largest squared singular value: from almost none to almost a constant.
_PENALTIES = np.logspace(-8, 1, 19)
Solver = Callable[[NDArray[np.intp], NDArray[np.intp]], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True)
class MixingLaw:
    """`L_j(w) = c_j + exp(a_j + Σ_k t_kj w_k)`, the law of Data Mixing Laws (Ye et al. 2024, arXiv:2403.16952).

    It is convex in the mixture.

    Args:
        floors: `[num_losses]`: c.
        intercepts: `[num_losses]`: a.
        slopes: `[num_streams, num_losses]`: t.
    """

    floors: FloatArray
    intercepts: FloatArray
    slopes: FloatArray

    def __call__(self, mixtures: FloatArray) -> FloatArray:
        """Predicts losses `[num_mixtures, num_losses]` of mixtures `[num_mixtures, num_streams]`."""
        with np.errstate(over="ignore"):
            return np.asarray(self.floors + np.exp(self.intercepts + mixtures @ self.slopes))

    @classmethod
    def fit(cls, mixtures: FloatArray, losses: FloatArray) -> "MixingLaw":
        """Fits the law.

        The floors and a ridge penalty on the slopes are the pair of a grid with the least squared error of the loss on
        mixtures left out. A grid needs no starting point, and the penalty keeps a few runs from being fitted exactly.

        Args:
            mixtures: `[num_runs, num_streams]` on the simplex. Runs of one mixture are left out together.
            losses: `[num_runs, num_losses]`.
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
        return cls(floors[gap, columns], *solve(penalty, gap * losses.shape[1] + columns))


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


_MOST_CHECKED = 64  # runs, of whose fits the intervals are judged: they leave runs out in turns
Predictor = Callable[[FloatArray], FloatArray]


def ours(swarm: Swarm, rows: FloatArray) -> Prediction:
    """Fits each loss, and predicts the objective by them."""
    counts = np.ones(len(rows))
    return predict_objective(
        swarm.objective, swarm.mixtures[rows], swarm.losses[rows], counts, is_checked=len(rows) <= _MOST_CHECKED
    )


def ours_at_once(swarm: Swarm, rows: FloatArray) -> Predictor:
    """Fits the objective alone."""
    alone, values = FitTarget("alone", {"alone": 1.0}), swarm.values[rows][:, None]
    return predict_objective(alone, swarm.mixtures[rows], values, np.ones(len(rows)), is_checked=False)


def _law(swarm: Swarm, rows: FloatArray) -> Predictor:
    law = MixingLaw.fit(swarm.mixtures[rows], swarm.values[rows][:, None])
    return lambda points: law(points)[:, 0]


def _by_sklearn(make: Callable[[], Any], features: Predictor) -> Callable[[Swarm, FloatArray], Predictor]:
    def fit(swarm: Swarm, rows: FloatArray) -> Predictor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hyperparameters at their bounds
            model = make().fit(features(swarm.mixtures[rows]), swarm.values[rows])
        return lambda points: np.asarray(model.predict(features(points)))

    return fit


def _process() -> GaussianProcessRegressor:
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(0.5, (0.05, 10.0)) + WhiteKernel(1e-2, (1e-8, 10.0))
    return GaussianProcessRegressor(kernel, normalize_y=True)


def _ridge() -> Any:
    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 25)))


CONTESTANTS: dict[str, Callable[[Swarm, FloatArray], Predictor]] = {
    "exponential law": _law,
    "Gaussian process": _by_sklearn(_process, lambda points: points),
    "the same, roots": _by_sklearn(_process, np.sqrt),
    "ridge, roots": _by_sklearn(_ridge, lambda points: np.hstack([points, np.sqrt(points)])),
    "ours, one fit": ours_at_once,
    "ours": ours,
}
