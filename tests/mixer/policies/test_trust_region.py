import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies import Decision, Function, Policy, TrustRegion
from tests.mixer.policies.observed import Told, led, observe

EVEN = np.array([0.5, 0.5])


def run(policy: Policy, num_steps: int, own: Any = (0.5, 0.5)) -> list[Decision]:
    return led(policy, [observe(step, [1.0] * len(own)) for step in range(1, num_steps + 1)], own)


def divergence(old: np.ndarray, new: np.ndarray, least: float) -> float:
    old, new = np.maximum(old, least), np.maximum(new, least)
    return float((old * np.log(old / new)).sum() + new.sum() - old.sum())


@pytest.mark.parametrize(
    ("told", "arguments", "expected"),
    [
        # From (0.9, 0.1) to (0.1, 0.9) with factor 2: the second may double, that is an eighth of the way, on which the
        # first falls to 0.8. Then it may double again, to 0.4; the first falls by half, to 0.3 and 0.15, and is there.
        (([9, 1], [1, 9]), {"max_log_change": math.log(2)}, [0.1, 0.2, 0.4, 0.7, 0.85, 0.9]),
        # A weight of 0 may grow from the least that counts, and a small weight may fall to 0.
        (([1, 0], [0.5, 0.5]), {"max_log_change": math.log(2), "least": 0.05}, [0.0, 0.1, 0.2, 0.4, 0.5]),
        (([0.8, 0.2], [1, 0]), {"max_log_change": math.log(2), "least": 0.06}, [0.2, 0.1, 0.0, 0.0]),
        # From (1, 0) towards (0, 1) the divergence is -log(1 - λ).
        (([1, 0], [0, 1]), {"max_log_change": None, "max_divergence": math.log(4 / 3), "least": 1e-9}, [0.0, 0.25]),
    ],
)
def test_weights_by_hand(told: Any, arguments: dict[str, Any], expected: list[float]) -> None:
    decisions = run(TrustRegion(Told(*told), **arguments), len(expected) - 1)
    np.testing.assert_allclose([made.weights[1] for made in decisions], expected, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose([made.weights.sum() for made in decisions], 1.0)


rows = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=4, max_size=4).filter(lambda row: sum(row) > 0)


@given(old=rows, new=rows, most=st.floats(0.01, 3.0), least=st.floats(1e-4, 0.5))
def test_no_logarithm_changes_by_more_and_one_by_as_much(old: Any, new: Any, most: float, least: float) -> None:
    policy = TrustRegion(Told(np.array(old) / sum(old), new), most, least=least)
    first, second = (made.weights for made in run(policy, 1, [1] * 4))
    target = np.array(new) / sum(new)
    changes, jump = (np.abs(np.log(np.maximum(w, least)) - np.log(np.maximum(first, least))) for w in (second, target))
    assert changes.max() <= most + 1e-9
    assert second.sum() == pytest.approx(1.0)
    assert np.allclose(second, target) or jump.max() > most - 1e-9, "it could have gone all the way"


@given(old=rows, new=rows, most=st.floats(1e-4, 3.0), least=st.floats(1e-4, 0.5))
def test_the_divergence_is_the_most_that_is_allowed(old: Any, new: Any, most: float, least: float) -> None:
    _, second = run(TrustRegion(Told(old, new), None, most, least), 1, [1] * 4)
    start, target = np.array(old) / sum(old), np.array(new) / sum(new)
    found = divergence(start, second.weights, least)
    assert found <= most + 1e-9
    assert np.allclose(second.weights, target) or found == pytest.approx(most, rel=1e-5)


def test_the_tighter_of_both_limits_holds_and_within_it_weights_are_passed_on_to_the_bit() -> None:
    found, expected = (
        run(TrustRegion(Told([9, 1], [1, 9]), limit, 1e-4), 1)[1].weights for limit in (math.log(2), None)
    )
    np.testing.assert_array_equal(found, expected)
    decisions = run(TrustRegion(Function(lambda step, weights: [1 + step % 2, 3]), 5.0), 3)
    assert decisions[3].weights.tolist() == [0.4, 0.6]


@pytest.mark.parametrize(
    ("weights", "told", "factor", "expected"),
    [
        # Limited as weights are.
        (EVEN, [[1.8, 0.2], [0.2, 1.8]], 2.0, [[1.6, 0.4], [1.2, 0.8]]),
        # Factors that come and go pass through ones.
        (EVEN, [None, [0.2, 1.8], None], 1.5, [[2 / 3, 4 / 3], [1.0, 1.0]]),
        # What counts is limited, not the factors: parts of the gradient are (1/2, 1/2), then (1/4, 3/4): within a
        # factor of 2. To (1/2, 1/2) again with a factor of 1.25: λ = 1/4 of the way.
        ([0.1, 0.9], [[5.0, 5 / 9], [2.5, 5 / 6]], 2.0, [[2.5, 5 / 6]]),
        ([0.1, 0.9], [[2.5, 5 / 6], [5.0, 5 / 9]], 1.25, [[0.3125 / 0.1, 0.6875 / 0.9]]),
        # Factors of streams without weight are no stumbling block.
        ([1.0, 0.0], [None, [0.0, 3.0]], 1.1, [[0.0, 3.0]]),
    ],
)
def test_factors_by_hand(weights: Any, told: Any, factor: float, expected: Any) -> None:
    inner = Told(*(Decision(np.array(weights), None if row is None else np.array(row)) for row in told))
    first, *later = run(TrustRegion(inner, math.log(factor)), len(expected))
    assert told[0] is not None or first.loss_weights is None
    np.testing.assert_allclose([made.loss_weights for made in later], expected, rtol=1e-12)


def test_a_stream_with_samples_on_top_has_no_weight_left() -> None:
    extra = Decision(np.array([1.0, 0.0]), additional=np.array([0.0, 0.5]))
    found = run(TrustRegion(Told([0.2, 0.8], extra), 0.1), 1)[1]
    assert found.state_dict() == {"weights": [1.0, 0.0], "loss_weights": None, "additional": [0.0, 0.5]}
