"""Policies as they come, with one stream or many: none refuses to start, or takes all there is for its own rule."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixer import policies
from mixer.policies import ADO, Floor, LossChange, Mixture, Observation, Policy, Uniform
from mixer.policies.registry import built_in_policies
from tests.mixer.policies.observed import NAN, measured, mixture
from tests.refusals import refused

# Those without a default for everything.
_GIVEN: dict[str, Callable[[int], Policy]] = {
    "Fixed": lambda count: policies.Fixed(),
    "Scheduled": lambda count: policies.Scheduled([(0.0, np.ones(count))]),
    "TargetLoss": lambda count: policies.TargetLoss({f"s{number}": 0.5 for number in range(count)}),
    "UniMax": lambda count: policies.UniMax(100 * count),
    "Function": lambda count: policies.Function(lambda step, weights: weights),
}


def _made(name: str, count: int) -> Policy:
    kind: Any = built_in_policies()[name]
    if issubclass(kind, policies.Wrapper):
        return kind(LossChange())  # type: ignore[no-any-return]
    return _GIVEN[name](count) if name in _GIVEN else kind()


def _seen(step: int, weights: np.ndarray, random: np.random.Generator, gap: bool = False) -> Observation:
    count = len(weights)
    losses, pieces = 1 / np.arange(step, step + count) + random.random(count), random.random((count, 2))
    losses = np.full(count, NAN) if gap else losses
    shown: dict[str, Any] = {"losses": losses}
    shown |= {"evaluation_losses": losses / 2, "weights": weights / weights.sum(), "batch_size": 4 * count}
    return measured(random.random(count), np.full(count, 3.0), [4] * count, pieces @ pieces.T, step=step, **shown)


@pytest.mark.parametrize(
    ("make", "usual"), [(LossChange, 0.05), (ADO, 0.01), (lambda **kw: Floor(Uniform(), **kw), 0.05)]
)
def test_least_shares_are_as_ever_of_few_streams_and_half_an_equal_one_of_many(make: Any, usual: float) -> None:
    option = "minimum" if isinstance(make(), Floor) else "floor"
    for count in (4, 10, 11, 50, 51, 1000):
        found, given = make(), make(**{option: usual if count <= 1 / (2 * usual) else 1 / (2 * count)})
        random, other = np.random.default_rng(0), np.random.default_rng(0)
        first, second = found.start(mixture([1.0] * count)), given.start(mixture([1.0] * count))
        for step in range(1, 13):
            first = found.update(_seen(step, first.weights, random))
            second = given.update(_seen(step, second.weights, other))
            np.testing.assert_array_equal(first.weights, second.weights)
        with refused(option):
            make(**{option: min(1.0, 2 / count)}).start(mixture([1.0] * count))


@pytest.mark.parametrize("name", sorted(built_in_policies()))
def test_the_defaults_go_with_one_stream_and_with_a_thousand(name: str) -> None:
    policy, random = _made(name, 1000), np.random.default_rng(0)
    decision = policy.start(mixture([1.0] * 1000))
    for step in range(1, 5):
        decision = policy.update(_seen(step, decision.weights, random))
        assert decision.weights.min() >= 0.0
        assert decision.weights.sum() == pytest.approx(1.0)
    policy, one = _made(name, 1), np.ones(1)
    decisions = [policy.start(Mixture(("s0",), np.array([100]), one))]
    for step in range(1, 13):
        seen = _seen(step, one, random, gap=step == 5)
        decisions.append(policy.update(replace(seen, shares=one, active=np.array([step != 9]))))
    assert [made.weights.tolist() for made in decisions] == [[1.0]] * 13
    assert all(made.loss_weights is None or made.loss_weights.tolist() == [1.0] for made in decisions)
