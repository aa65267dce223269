from typing import Any

import numpy as np
import pytest

from mixer.policies import BalancedPiKE, Floor, PiKE
from tests.mixer.policies.observed import NAN, factors_of, led, measured, observe, weights_of

LOG_2 = float(np.log(2.0))


def raw(tau: float = 1.0, **arguments: Any) -> BalancedPiKE:
    """One measurement, nothing cut or lifted."""
    plain = {"interval_steps": 1, "decay": 0.0, "max_log_change": 100, "min_samples": 0}
    return BalancedPiKE(tau, 0.0, **{**plain, **arguments})


@pytest.mark.parametrize(
    ("policy", "seen", "losses", "expected"),
    [
        # τL = (ln 2, 0): softmax (2/3, 1/3), y = (2/3, 1/3) at τ = 1. Norms (3·4/9, 9·1/9) = (4/3, 1), variances
        # (18·4/9, 90·1/9) = (8, 10): exponents at b = 10 0.1·4/3 − 0.01·8 = 0.16/3 and 0.1 − 0.01·10 = 0.
        (raw(noise_rate=0.2, scale_free=False), ([3, 9], [18, 90]), [1 + LOG_2, 1], 0.16 / 3),
        # τ = 3, L = (ln 2 / 3, 0): y = 3·(2/3, 1/3) = (2, 1), norms (12, 9): exponents 1.2 and 0.9.
        (raw(3.0, noise_rate=0.0, scale_free=False), ([3, 9], [0, 0]), [LOG_2 / 3, 0], 0.3),
        # Scale-free only 2 : 1 counts: norms (12, 9) over their mean, 10.5: exponents 1.2/10.5 and 0.9/10.5.
        (raw(noise_rate=0.0), ([3, 9], [0, 0]), [LOG_2, 0], 0.3 / 10.5),
        # Norms (1·4, 1·1) with a product of 2·1·0.5 = 1, as in PiKE's own test: c̄ = 0.5, weights 0.6 and 0.4.
        (raw(mode="conceptual"), ([1, 1], [0, 0], [[1, 0.5], [0.5, 1]]), [LOG_2, 0], np.log(1.5)),
    ],
)
def test_the_equation_by_hand(policy: PiKE, seen: Any, losses: list[float], expected: float) -> None:
    norms, variance, *gram = seen
    weights = weights_of(policy, measured(norms, variance, [5, 5], *gram, losses=losses))
    np.testing.assert_allclose(np.log(weights[0] / weights[1]), expected)


@pytest.mark.parametrize("mode", ["practical", "conceptual"])
def test_equal_losses_are_plain_pike(mode: Any) -> None:
    batch, balanced = measured([3, 1], [10, 30], [5, 5], losses=[2.0, 2.0]), BalancedPiKE(interval_steps=1, mode=mode)
    np.testing.assert_allclose(weights_of(balanced, batch), weights_of(PiKE(1, mode), batch))


def test_losses_are_smoothed_over_every_step() -> None:
    # Decay 0.5: (0.25·4 + 0.5·2 + 1)/(1.75).
    policy = BalancedPiKE(loss_decay=0.5)
    led(policy, [observe(step, [loss, NAN]) for step, loss in enumerate([4, 2, 1])])
    assert policy.state_dict()["losses"] == {"values": [pytest.approx(3 / 1.75), 0.0], "counts": [3, 0]}


def test_factors_on_losses_are_given_on_demand_with_a_mean_of_one_among_those_that_are_there() -> None:
    worse = observe(1, [LOG_2, 0.0])
    assert [decision.loss_weights for decision in led(BalancedPiKE(), [worse])] == [None, None]
    first, second = led(Floor(BalancedPiKE(1.0, uses_loss_weights=True), 0.1), [worse])
    np.testing.assert_array_equal(first.loss_weights, [1.0, 1.0])
    np.testing.assert_allclose(second.loss_weights, [4 / 3, 2 / 3])
    left = observe(1, [LOG_2, 0.0, 50.0], active=np.array([True, True, False]))
    factors = factors_of(raw(uses_loss_weights=True), left, own=(0.4, 0.3, 0.3))
    np.testing.assert_allclose(factors, [4 / 3, 2 / 3, 1.0])
    unknown = observe(1, [2.0, 2.0, NAN])  # counts as the others
    np.testing.assert_allclose(factors_of(BalancedPiKE(uses_loss_weights=True), unknown, own=(0.3, 0.3, 0.4)), 1.0)
