"""Policies as they come, with many streams: none refuses to start, or takes all that there is for its own rule."""

from collections.abc import Callable

import numpy as np
import pytest

from mixer.policies import (
    ADO,
    Fixed,
    Floor,
    Function,
    LossChange,
    Mixture,
    Observation,
    Policy,
    Scheduled,
    TargetLoss,
    Uniform,
    UniMax,
)
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.policies.registry import built_in_policies

# Those without a default for everything.
_GIVEN: dict[str, Callable[[int], Policy]] = {
    "Fixed": lambda count: Fixed(),
    "Scheduled": lambda count: Scheduled([(0.0, np.ones(count))]),
    "TargetLoss": lambda count: TargetLoss({f"s{number}": 0.5 for number in range(count)}),
    "UniMax": lambda count: UniMax(100 * count),
    "Function": lambda count: Function(lambda step, weights: weights),
}
_WRAPPERS = ("Floor", "Smoothed", "WarmUp", "Hold", "TrustRegion")
_POLICIES = sorted(built_in_policies())


def _made(name: str, count: int) -> Policy:
    kind = built_in_policies()[name]
    if name in _WRAPPERS:
        return kind(LossChange())  # type: ignore[call-arg]
    return _GIVEN[name](count) if name in _GIVEN else kind()


def _mixture(count: int) -> Mixture:
    return Mixture(tuple(f"s{number}" for number in range(count)), np.full(count, 100), np.full(count, 1 / count))


def _seen(step: int, weights: np.ndarray, random: np.random.Generator) -> Observation:
    count = len(weights)
    losses, counts = 1 / np.arange(step, step + count) + random.random(count), np.full(count, 4)
    pieces = random.random((count, 2))
    gradients = GradientStatistics(
        pieces @ pieces.T, np.full(count, 3.0), random.random(count), counts, counts / counts.sum(),
        np.zeros((count, count)),
    )  # fmt: skip
    return Observation(
        step=step,
        progress=step / 100,
        weights=weights / weights.sum(),
        counts=counts,
        tokens=10 * counts,
        seen=step * counts,
        losses=losses,
        evaluation_losses=losses / 2,
        excess_losses=losses,
        gradients=gradients,
        losses_after=0.9 * losses,
        batch_size=4 * count,
        update_norm=0.1,
    )


@pytest.mark.parametrize(
    ("make", "usual"), [(LossChange, 0.05), (ADO, 0.01), (lambda **kw: Floor(Uniform(), **kw), 0.05)]
)
@pytest.mark.parametrize("count", [4, 10, 11, 20, 50, 51, 100, 1000])
def test_least_shares_are_as_ever_of_few_streams_and_half_an_equal_one_of_many(
    make: Callable[..., Policy], usual: float, count: int
) -> None:
    option = "minimum" if isinstance(make(), Floor) else "floor"
    found, given = make(), make(**{option: usual if count <= 1 / (2 * usual) else 1 / (2 * count)})
    random, other = np.random.default_rng(0), np.random.default_rng(0)
    first, second = found.start(_mixture(count)), given.start(_mixture(count))
    for step in range(1, 13):
        first = found.update(_seen(step, first.weights, random))
        second = given.update(_seen(step, second.weights, other))
        np.testing.assert_array_equal(first.weights, second.weights)
    with pytest.raises(ValueError, match=f"{option} 0.* for each of {count} streams .* or leave it out"):
        make(**{option: min(1.0, 2 / count)}).start(_mixture(count))


@pytest.mark.parametrize("count", [25, 100, 1000])
@pytest.mark.parametrize("name", _POLICIES)
def test_the_defaults_go_with_many_streams(name: str, count: int) -> None:
    policy, random = _made(name, count), np.random.default_rng(0)
    decision = policy.start(_mixture(count))
    for step in range(1, 5):
        decision = policy.update(_seen(step, decision.weights, random))
        assert np.isfinite(decision.weights).all()
        assert decision.weights.min() >= 0.0
        assert decision.weights.sum() == pytest.approx(1.0)
