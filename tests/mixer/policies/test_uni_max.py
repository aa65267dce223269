from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from mixer.policies import UniMax
from tests.mixer.policies.observed import mixture, observe


def weights_of(policy: UniMax, sizes: list[int]) -> np.ndarray:
    return policy.start(mixture([1.0] * len(sizes), sizes)).weights


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # An even part of 300 is 100, of which the second can have 2 · 10 only; 280 are left for two: 140 each.
        ((300, 2), [140 / 300, 20 / 300, 140 / 300]),
        # 600: 20 of 200, then 200 of 290, and the 380 that are left.
        ((600, 2), [380 / 600, 20 / 600, 200 / 600]),
        # A short run is even, and the longest proportional.
        ((30,), [1 / 3] * 3),
        ((1110,), [1000 / 1110, 10 / 1110, 100 / 1110]),
    ],
)
def test_by_hand_at_the_start_and_ever_after(arguments: Any, expected: list[float]) -> None:
    policy = UniMax(*arguments)
    np.testing.assert_allclose(weights_of(policy, [1000, 10, 100]), expected)
    assert policy.is_static
    np.testing.assert_allclose(policy.update(observe(7, [1.0, 2.0, 3.0])).weights, expected)


many_sizes = st.lists(st.integers(1, 10**9), min_size=2, max_size=40)


@given(sizes=many_sizes, max_epochs=st.floats(0.1, 100), part=st.floats(1e-3, 1.0))
def test_none_is_passed_too_often_and_those_below_their_cap_are_even(sizes, max_epochs, part) -> None:
    caps = max_epochs * np.array(sizes)
    budget = max(1.0, part * caps.sum())
    assume(budget <= caps.sum())
    drawn = budget * weights_of(UniMax(budget, max_epochs), sizes)
    assert (drawn <= caps * (1 + 1e-9)).all()
    free = drawn < caps * (1 - 1e-9)
    if free.any():
        np.testing.assert_allclose(drawn[free], drawn[free][0], rtol=1e-6)
        assert (drawn[~free] <= drawn[free][0] * (1 + 1e-6)).all(), "what is capped would have had more"


def test_sizes_may_be_given_in_tokens_or_for_streams_of_unknown_size() -> None:
    np.testing.assert_allclose(weights_of(UniMax(30, sizes={"b": 10, "a": 100}), [100, 0]), [2 / 3, 1 / 3])
    in_tokens = UniMax(3000, sizes=[200, 9000], unit="tokens")
    np.testing.assert_allclose(weights_of(in_tokens, [100, 10]), [1 / 15, 14 / 15])
