"""Measurements of gradients without a model."""

import numpy as np

from mixer.measurements.gradients import GradientStatistics


def measured(num_streams: int = 3, seed: int = 0, missing: tuple[int, ...] = ()) -> GradientStatistics:
    """Makes up a measurement, of 4 samples a stream but for those that are missing."""
    random = np.random.default_rng(seed)
    gradients = random.normal(size=(num_streams, 6)) + 0.5
    gram, variance = gradients @ gradients.T, random.uniform(1.0, 9.0, num_streams)
    counts = np.full(num_streams, 4)
    for place in missing:
        gram[place], gram[:, place], variance[place], counts[place] = np.nan, np.nan, np.nan, 0
    return GradientStatistics(
        gram=gram,
        variance=variance,
        squared_norm=np.diagonal(gram) - variance / 4,
        counts=counts,
        shares=counts / counts.sum(),
        gram_error=np.zeros_like(gram),
    )
