import numpy as np
import pytest

from mixer import Fixed, ForkTest, MarginalValue, Safeguard
from mixer.measurements import ForkGain, Forks
from tests.mixer.policies.observed import led, observe
from tests.refusals import refused

OWN, MIXTURE = (3.0, 1.0), [1.0, 4.0]


@pytest.mark.parametrize(
    ("threshold", "gains", "followed"),
    [
        (1.645, [(0.10, 0.06), (0.10, 0.07)], [True, False]),  # the lower bounds are above and below 0
        (1.645, [(0.10, 0.07), (0.10, 0.06)], [False, True]),
        (0.0, [(0.001, 9.0), (-0.001, 9.0)], [True, False]),
        (-2.0, [(-0.10, 0.06), (-0.10, 0.04)], [True, False]),  # left only if surely worse
        (1.645, [(float("nan"), 0.1), (0.0, 0.0)], [False, True]),
    ],
)
def test_a_policy_is_followed_where_the_lower_bound_of_its_gain_is_not_below_zero(threshold, gains, followed) -> None:
    policy = ForkTest(Fixed(MIXTURE), threshold)
    seen = [observe(forks=ForkGain(*gain), counts=[8, 8]) for gain in gains]
    decisions = led(policy, [observe(counts=[8, 8]), seen[0], observe(counts=[8, 8]), seen[1]], OWN)
    expected = [True, True, followed[0], followed[0], followed[1]]
    for decision, is_followed in zip(decisions, expected, strict=True):
        weights = decision.weights / decision.weights.sum()
        np.testing.assert_allclose(weights, [0.2, 0.8] if is_followed else [0.75, 0.25])
    assert policy.explain()["followed"] == followed[1]


def test_by_default_it_tests_the_recommended_policy() -> None:
    policy = ForkTest()
    assert isinstance(policy.policy, Safeguard)
    assert isinstance(policy.policy.policy, MarginalValue)
    assert policy.needs[-1] == Forks((0.5, 0.75), 0.1)


@pytest.mark.parametrize(("option", "value"), [("threshold", 1e3), ("at", (0.5, 1.5)), ("share", -0.1), ("share", 0.6)])
def test_values_out_of_range_are_refused(option, value) -> None:
    with refused(option):
        ForkTest(Fixed(MIXTURE), **{option: value})
