"""Observations with gradients, for the tests of policies that look at them."""

from collections.abc import Sequence

import numpy as np

from mixer.policies import Mixture, Observation
from mixer.policies.gradient_statistics import GradientStatistics


def mixture_of(weights: Sequence[float]) -> Mixture:
    names = tuple(f"stream {k}" for k in range(len(weights)))
    return Mixture(names, np.full(len(weights), 100), np.array(weights, dtype=np.float64))


def measured(
    squared_norm: Sequence[float],
    variance: Sequence[float],
    counts: Sequence[int],
    *,
    gram: Sequence[Sequence[float]] | None = None,
    losses: Sequence[float] | None = None,
    step: int = 1,
) -> Observation:
    """A step whose gradients have these statistics; without products they are at right angles to each other."""
    unmeasured = unmeasured_step(counts, losses=losses, step=step)
    products = np.diag(squared_norm) if gram is None else np.array(gram)
    statistics = GradientStatistics(
        gram=np.asarray(products, dtype=np.float64),
        variance=np.array(variance, dtype=np.float64),
        squared_norm=np.array(squared_norm, dtype=np.float64),
        counts=unmeasured.counts,
        shares=unmeasured.weights,
        gram_error=np.zeros((len(counts), len(counts))),
    )
    return Observation(**{**vars(unmeasured), "gradients": statistics})


def unmeasured_step(counts: Sequence[int], *, losses: Sequence[float] | None = None, step: int = 1) -> Observation:
    number = np.array(counts, dtype=np.int64)
    return Observation(
        step=step,
        progress=0.0,
        weights=number / max(1, number.sum()),
        counts=number,
        tokens=0 * number,
        seen=step * number,
        losses=np.full(len(number), np.nan) if losses is None else np.array(losses, dtype=np.float64),
    )
