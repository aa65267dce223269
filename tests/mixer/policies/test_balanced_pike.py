from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import BalancedPiKE, Floor, PiKE
from tests.mixer.policies.gradients import measured, mixture_of, unmeasured_step

LOG_2 = float(np.log(2.0))


def raw(tau: float = 1.0, **arguments: Any) -> BalancedPiKE:
    """One measurement, nothing cut or lifted."""
    plain = {"interval_steps": 1, "decay": 0.0, "max_log_change": 100, "min_samples": 0}
    return BalancedPiKE(tau, 0.0, **{**plain, **arguments})


def decided(policy: PiKE, *observations: Any) -> np.ndarray:
    decision = policy.start(mixture_of([0.5, 0.5]))
    for observation in observations:
        decision = policy.update(observation)
    return decision.weights


def test_the_equation_by_hand() -> None:
    # τL = (ln 2, 0): softmax (2/3, 1/3), y = (2/3, 1/3) at τ = 1. Norms (3·4/9, 9·1/9) = (4/3, 1), variances
    # (18·4/9, 90·1/9) = (8, 10): exponents at b = 10 0.1·4/3 − 0.01·8 = 0.16/3 and 0.1 − 0.01·10 = 0.
    policy = raw(noise_rate=0.2, scale_free=False)
    weights = decided(policy, measured([3, 9], [18, 90], [5, 5], losses=[1 + LOG_2, 1]))
    np.testing.assert_allclose(np.log(weights[0] / weights[1]), 0.16 / 3)


def test_tau_is_in_the_factors_of_the_raw_form() -> None:
    # τ = 3, L = (ln 2 / 3, 0): y = 3·(2/3, 1/3) = (2, 1), norms (12, 9): exponents 1.2 and 0.9.
    policy = raw(3.0, noise_rate=0.0, scale_free=False)
    weights = decided(policy, measured([3, 9], [0, 0], [5, 5], losses=[LOG_2 / 3, 0]))
    np.testing.assert_allclose(np.log(weights[0] / weights[1]), 0.3)


def test_scale_free_by_hand() -> None:
    # Only 2 : 1 counts: norms (12, 9) over their mean, 10.5: exponents 1.2/10.5 and 0.9/10.5.
    weights = decided(raw(noise_rate=0.0), measured([3, 9], [0, 0], [5, 5], losses=[LOG_2, 0]))
    np.testing.assert_allclose(np.log(weights[0] / weights[1]), 0.3 / 10.5)


def test_the_conceptual_form_by_hand() -> None:
    # Norms (1·4, 1·1) with a product of 2·1·0.5 = 1, as in PiKE's own test: c̄ = 0.5, weights 0.6 and 0.4.
    policy = raw(mode="conceptual")
    batch = measured([1, 1], [0, 0], [5, 5], gram=[[1, 0.5], [0.5, 1]], losses=[LOG_2, 0])
    np.testing.assert_allclose(decided(policy, batch), [0.6, 0.4])


@pytest.mark.parametrize("mode", ["practical", "conceptual"])
def test_equal_losses_are_plain_pike(mode: str) -> None:
    batch = measured([3, 1], [10, 30], [5, 5], losses=[2.0, 2.0])
    plain = PiKE(1, mode)
    np.testing.assert_allclose(decided(BalancedPiKE(interval_steps=1, mode=mode), batch), decided(plain, batch))


@given(shift=st.floats(-100.0, 100.0), tau=st.sampled_from([1.0, 3.0, 5.0]))
def test_only_differences_of_losses_count(shift: float, tau: float) -> None:
    first, second = (
        decided(BalancedPiKE(tau, interval_steps=1), measured([3, 1], [10, 30], [5, 5], losses=[moved + 1, moved]))
        for moved in (0.0, shift)
    )
    np.testing.assert_allclose(second, first, rtol=1e-9)


def test_the_higher_tau_the_more_the_worst_stream_has() -> None:
    batch = measured([1, 1], [1, 1], [50, 50], losses=[1.5, 1.0])
    shares = [decided(BalancedPiKE(tau, interval_steps=1), batch)[0] for tau in (0.1, 1.0, 3.0)]
    assert 0.5 < shares[0] < shares[1] < shares[2]


def test_losses_are_smoothed_over_every_step() -> None:
    # Decay 0.5: (0.25·4 + 0.5·2 + 1)/(1.75).
    policy = BalancedPiKE(loss_decay=0.5)
    decided(policy, *(unmeasured_step([5, 5], losses=[loss, np.nan], step=k) for k, loss in enumerate([4, 2, 1])))
    assert policy.state_dict()["losses"] == {"values": [pytest.approx(3 / 1.75), 0.0], "counts": [3, 0]}


def test_a_stream_without_a_loss_counts_as_the_others() -> None:
    policy = BalancedPiKE(uses_loss_weights=True)
    policy.start(mixture_of([0.25, 0.25, 0.5]))
    decision = policy.update(unmeasured_step([5, 5, 0], losses=[2.0, 2.0, np.nan]))
    np.testing.assert_allclose(decision.loss_weights, [1.0, 1.0, 1.0])


class TestLossWeights:
    def test_those_that_are_there_have_a_mean_of_one(self) -> None:
        policy = raw(uses_loss_weights=True)
        policy.start(mixture_of([0.4, 0.3, 0.3]))
        left = unmeasured_step([5, 5, 5], losses=[LOG_2, 0.0, 50.0])
        decision = policy.update(replace(left, active=np.array([True, True, False])))
        np.testing.assert_allclose(decision.loss_weights, [4 / 3, 2 / 3, 1.0])

    def test_they_are_left_alone_by_default(self) -> None:
        policy = BalancedPiKE()
        assert policy.start(mixture_of([0.5, 0.5])).loss_weights is None
        assert policy.update(unmeasured_step([5, 5], losses=[1.0, 2.0])).loss_weights is None

    def test_on_demand_they_are_the_factors_with_a_mean_of_one(self) -> None:
        policy = Floor(BalancedPiKE(1.0, uses_loss_weights=True), 0.1)
        np.testing.assert_array_equal(policy.start(mixture_of([0.5, 0.5])).loss_weights, [1.0, 1.0])
        decision = policy.update(unmeasured_step([5, 5], losses=[LOG_2, 0.0]))
        np.testing.assert_allclose(decision.loss_weights, [4 / 3, 2 / 3])


def test_it_needs_losses_too() -> None:
    assert BalancedPiKE().needs == {"gradient_variance", "loss"}
    assert PiKE().needs == {"gradient_variance"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": 0.0}, "tau must be in .* got 0.0; 3 is best on average"),
        ({"tau": float("nan")}, "tau must be in"),
        ({"loss_decay": 1.0}, r"loss_decay must be in \[0, 1\), got 1.0"),
        ({"signal_rate": -1.0}, "signal_rate must be 0 or more"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BalancedPiKE(**arguments)
