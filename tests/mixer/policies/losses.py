"""Observations of losses, for tests of policies that go by them."""

from collections.abc import Sequence

import numpy as np

from mixer.policies import Decision, Mixture, Observation, Policy


def mixture(weights: Sequence[float], sizes: Sequence[int] | None = None) -> Mixture:
    own = np.array(weights, dtype=np.float64)
    names = tuple("abcdefgh"[k] if len(own) <= 8 else f"s{k}" for k in range(len(own)))
    return Mixture(names, np.full(len(own), 100) if sizes is None else np.array(sizes), own / own.sum())


def observe(
    step: int,
    losses: Sequence[float] | None = None,
    *,
    evaluation: Sequence[float] | None = None,
    after: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    shares: Sequence[float] | None = None,
    num_streams: int = 2,
) -> Observation:
    given = next((x for x in (losses, evaluation, after, weights) if x is not None), [0.0] * num_streams)
    size = len(given)
    counts = np.ones(size, dtype=np.int64)
    return Observation(
        step=step,
        progress=0.0,
        weights=np.full(size, 1 / size) if weights is None else np.array(weights, dtype=np.float64),
        counts=counts,
        tokens=counts,
        seen=step * counts,
        losses=np.full(size, np.nan) if losses is None else np.array(losses, dtype=np.float64),
        evaluation_losses=None if evaluation is None else np.array(evaluation, dtype=np.float64),
        shares=None if shares is None else np.array(shares, dtype=np.float64),
        active=None if shares is None else np.array(shares) > 0,  # who has a share stays
        losses_after=None if after is None else np.array(after, dtype=np.float64),
    )


class Told(Policy):
    """Decides what it is told to, one decision after the other; the last one stays."""

    def __init__(self, *decisions: Decision):
        super().__init__()
        self.decisions = decisions

    def start(self, mixture: Mixture) -> Decision:
        return self.decisions[0]

    def update(self, observation: Observation) -> Decision:
        return self.decisions[min(observation.step, len(self.decisions) - 1)]
