"""Mixtures and observations without a run, for the tests of policies."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mixer.measurements.alignment import TargetStatistics
from mixer.measurements.gradients import GradientStatistics
from mixer.policies import Decision, Mixture, Observation, Policy
from mixer.policies.objective import Objective
from tests.mixer.kinds import parted

NAN = float("nan")
ARRAYS = ("weights", "shares", "losses", "evaluation_losses")


def mixture(weights: Sequence[float], sizes: Sequence[int] | None = None) -> Mixture:
    own = np.array(weights, dtype=np.float64)
    names = tuple("abcdefgh"[k] if len(own) <= 8 else f"s{k}" for k in range(len(own)))
    return Mixture(names, np.full(len(own), 100) if sizes is None else np.array(sizes), own / own.sum())


def observe(
    step: int = 1, losses: Sequence[float] | None = None, counts: Sequence[int] | None = None, **seen: Any
) -> Observation:
    """A step of 8 samples a stream, of 10 tokens each; who has a share stays, unless it is said."""
    given = {"losses": losses, **seen}
    size = next((len(given[name]) for name in (*ARRAYS, "active") if given.get(name) is not None), 2)
    size = size if counts is None else len(counts)
    number = np.full(size, 8) if counts is None else np.array(counts, dtype=np.int64)
    even = number / max(1, number.sum())
    rest = {"progress": 0.0, "tokens": 10 * number, "seen": step * number, **given}
    rest |= {name: np.array(rest[name], dtype=np.float64) for name in ARRAYS if rest.get(name) is not None}
    if rest.get("shares") is not None:
        rest.setdefault("active", rest["shares"] > 0)
    if rest["losses"] is None:
        rest["losses"] = np.full(size, np.nan)
    rest, results = parted(rest)
    return Observation(**{"step": step, "weights": even, "counts": number, **rest}, measured=results)


def measured(
    squared_norm: Sequence[float], variance: Sequence[float], counts: Sequence[int], gram: Any = None, **seen: Any
) -> Observation:
    """A step whose gradients have these statistics; without products they are at right angles to each other."""
    number = np.array(counts, dtype=np.int64)
    statistics = GradientStatistics(
        gram=np.diag(np.array(squared_norm, dtype=np.float64)) if gram is None else np.array(gram, dtype=np.float64),
        variance=np.array(variance, dtype=np.float64),
        squared_norm=np.array(squared_norm, dtype=np.float64),
        counts=number,
        shares=number / max(1, number.sum()),
        gram_error=np.zeros((len(number), len(number))),
    )
    return observe(counts=counts, gradients=statistics, **seen)


def led(policy: Policy, observations: Iterable[Observation], own: Sequence[float] = (0.5, 0.5)) -> list[Decision]:
    return [policy.start(mixture(own)), *(policy.update(seen) for seen in observations)]


def weights_of(policy: Policy, *observations: Observation, own: Sequence[float] = (0.5, 0.5)) -> np.ndarray:
    return led(policy, observations, own)[-1].weights


def factors_of(policy: Policy, *observations: Observation, own: Sequence[float] = (0.5, 0.5)) -> np.ndarray:
    factors = led(policy, observations, own)[-1].loss_weights
    assert factors is not None
    return factors


def measurement(
    scores: Any, error: float = 0.0, losses: Any = (1.0,), stream_losses: Any = None, **seen: Any
) -> Observation:
    """A step with a measurement of the targets."""
    alignment = np.atleast_2d(np.array(scores, dtype=np.float64))
    own = None if stream_losses is None else np.array(stream_losses, dtype=np.float64)
    errors = np.full(alignment.shape, error)
    targets = TargetStatistics(np.array(losses), alignment, errors, stream_losses=own)
    return observe(counts=[8] * alignment.shape[1], targets=targets, **seen)


def decided(policy: Policy, *seen: Observation, objective: Objective | None = None, own: Any = (1, 1, 1)) -> np.ndarray:
    objective = Objective({"t": 1.0}) if objective is None else objective
    weights = policy.start(replace(mixture(own), objective=objective)).weights
    for observation in seen:
        weights = policy.update(observation).weights
    return weights


class Told(Policy):
    """Decides what it is told to, one decision after the other; the last one stays."""

    def __init__(self, *decisions: Decision | Sequence[float]):
        super().__init__()
        self.decisions = [
            given if isinstance(given, Decision) else Decision(np.array(given, dtype=np.float64)) for given in decisions
        ]

    def start(self, mixture: Mixture) -> Decision:
        return self.decisions[0]

    def update(self, observation: Observation) -> Decision:
        return self.decisions[min(observation.step, len(self.decisions) - 1)]
