"""Known laws of losses, and mixtures to see them at."""

import numpy as np

from mixer.utils.arrays import FloatArray


def own_squares(mixtures: FloatArray) -> FloatArray:
    """L_k = (1 − w_k)²: the sum over k is least where all w_k are equal, by convexity."""
    return (1.0 - mixtures) ** 2


def weighted_squares(mixtures: FloatArray, weights: FloatArray) -> FloatArray:
    """L_k = a_k (1 − w_k)²; see `best_of_weighted_squares`."""
    return weights * (1.0 - mixtures) ** 2


def best_of_weighted_squares(weights: FloatArray) -> FloatArray:
    """Where the average is least: −2 a_k (1 − w_k) = μ for all k, so 1 − w_k = c / a_k.

    The sum over k gives K − 1 = c Σ 1/a_k, and so w_k = 1 − (K − 1) / (a_k Σ_j 1/a_j).
    """
    return 1.0 - (len(weights) - 1) / (weights * (1.0 / weights).sum())


def dirichlet(num_runs: int, num_streams: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).dirichlet(np.ones(num_streams), num_runs)
