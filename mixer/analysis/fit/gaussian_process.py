"""A Gaussian process on the simplex."""

import warnings
from typing import Any

import numpy as np

from mixer.analysis.fit.laws import Predictor
from mixer.analysis.fit.libraries import library
from mixer.analysis.fit.replicates import Groups
from mixer.utils.arrays import FloatArray


def fit_gaussian_process(mixtures: FloatArray, losses: FloatArray, groups: Groups) -> Predictor:
    """Fits a Gaussian process with a squared-exponential kernel and noise to all losses at once.

    Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1, with the kernel's variance, its
    one length for all streams and the noise by the largest marginal likelihood. One length, since few runs do not tell
    one for each stream; one kernel for all losses, each scaled to variance 1, for the same reason.

    Args:
        mixtures: `[num_runs, num_streams]` on the simplex.
        losses: `[num_runs, num_losses]`.
        groups: `[num_runs]`, which make no difference: nothing is left out here.

    Returns:
        The mean of the process: losses `[num_mixtures, num_losses]` of mixtures `[num_mixtures, num_streams]`.

    Raises:
        ValueError: If scikit-learn is not installed.
    """
    processes = library(
        "sklearn.gaussian_process",
        "regressor='gaussian-process' (one of those that 'auto' tries)",
        "adaptive-mixer[fit]",
        "take another regressor",
    )
    kernels: Any = processes.kernels
    kernel = kernels.ConstantKernel(1.0, (1e-2, 1e3)) * kernels.RBF(0.5, (0.05, 10.0))
    kernel += kernels.WhiteKernel(1e-2, (1e-8, 10.0))
    process = processes.GaussianProcessRegressor(kernel, normalize_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a bound that is reached is an answer too: the error on what is left out tells
        process.fit(mixtures, losses)

    def predict(points: FloatArray) -> FloatArray:
        return np.asarray(process.predict(points), dtype=np.float64).reshape(len(points), -1)

    return predict
