"""Regressions of an objective on mixtures: ours and those that it is compared with."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.swarms.mixing_law import MixingLaw
from benchmarks.swarms.swarms import Swarm
from mixer.tools.analysis.fit.fit_target import FitTarget
from mixer.tools.analysis.fit.prediction import Prediction, predict_objective
from mixer.utils.arrays import FloatArray

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
