"""What tests of policies by losses let them see."""

from collections.abc import Sequence

import numpy as np

from mixer.policies import Mixture, Observation

NOTHING = float("nan")


def mixture_of(weights: Sequence[float]) -> Mixture:
    names = tuple("abcdefgh"[k] if len(weights) <= 8 else f"s{k}" for k in range(len(weights)))
    return Mixture(names, np.full(len(weights), 100), np.array(weights, dtype=np.float64))


def seen(
    step: int,
    losses: Sequence[float],
    weights: Sequence[float] | None = None,
    shares: Sequence[float] | None = None,
    counts: Sequence[int] | None = None,
    evaluation_losses: Sequence[float] | None = None,
    excess_losses: Sequence[float] | None = None,
) -> Observation:
    """A step of 8 samples a stream, of uniform weights, unless something else is said; who has a share stays."""
    num_streams = len(losses)
    amounts = np.array([8] * num_streams if counts is None else counts)
    return Observation(
        step=step,
        progress=0.0,
        weights=np.full(num_streams, 1 / num_streams) if weights is None else np.array(weights),
        counts=amounts,
        tokens=10 * amounts,
        seen=step * amounts,
        losses=np.array(losses, dtype=np.float64),
        evaluation_losses=None if evaluation_losses is None else np.array(evaluation_losses),
        shares=None if shares is None else np.array(shares),
        active=None if shares is None else np.array(shares) > 0,
        excess_losses=None if excess_losses is None else np.array(excess_losses),
    )
