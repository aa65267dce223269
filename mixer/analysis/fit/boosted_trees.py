"""Boosted trees, the regression that RegMix takes for its hundreds of runs."""

import numpy as np

from mixer.analysis.fit.laws import Predictor
from mixer.analysis.fit.libraries import library
from mixer.analysis.fit.replicates import Groups
from mixer.utils.arrays import FloatArray


def fit_boosted_trees(mixtures: FloatArray, losses: FloatArray, groups: Groups) -> Predictor:
    """Fits LightGBM to each loss, with the 1000 trees and the rate 0.01 of RegMix's published code (2407.01492).

    [code] stops early on runs that are held out; here all runs are trained on, since few can be spared. A leaf holds at
    least a tenth of the runs, 20 at most (LightGBM's default, with which less than 40 runs are never split).

    Args:
        mixtures: `[num_runs, num_streams]` on the simplex.
        losses: `[num_runs, num_losses]`.
        groups: `[num_runs]`, which make no difference: nothing is left out here.

    Returns:
        The trees' sum: losses `[num_mixtures, num_losses]` of mixtures `[num_mixtures, num_streams]`.

    Raises:
        ValueError: If LightGBM is not installed.
    """
    lightgbm = library("lightgbm", "regressor='lightgbm'", "lightgbm", "take another regressor")
    settings = {
        "n_estimators": 1000,
        "learning_rate": 0.01,
        "min_child_samples": int(np.clip(len(mixtures) // 10, 1, 20)),
        "random_state": 0,
        "deterministic": True,
        "force_row_wise": True,  # else it times two ways and takes the faster one, which varies
        "n_jobs": 1,
        "verbosity": -1,
    }
    trees = [lightgbm.LGBMRegressor(**settings).fit(mixtures, column) for column in losses.T]
    return lambda points: np.stack([np.asarray(tree.predict(points), dtype=np.float64) for tree in trees], axis=1)
