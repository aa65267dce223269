import numpy as np
import pytest

from mixer.policies import DoReMi, Fixed
from tests.mixer.policies.observed import NAN, led, mixture, observe

LN3 = float(np.log(3))
OWN = [0.1, 0.9]
FIRST = observe(1, [9.0, 9.0], excess_losses=[LN3, 0.0])


def test_by_hand_from_a_reference_model() -> None:
    """(e^{ln 3}, 1)/4 = (0.75, 0.25), smoothed with c = 0.2: 0.8 · 0.75 + 0.1 = 0.7. The mean of one is that one.

    Then the second stream's excess is larger by ln(7/3): equal, smoothed equal. Means 0.6 and 0.4.
    """
    policy = DoReMi(1.0, 0.2, acts_on="sampling")
    with pytest.raises(ValueError, match=r"no averaged_weights before a run; train with mixing=DoReMi"):
        _ = policy.averaged_weights
    policy.start(mixture(OWN))
    assert policy.averaged_weights == {"a": 0.5, "b": 0.5}
    np.testing.assert_allclose(policy.update(FIRST).weights, [0.7, 0.3], rtol=1e-14)
    assert policy.averaged_weights == pytest.approx({"a": 0.7, "b": 0.3}, rel=1e-14)
    second = policy.update(observe(2, [9.0, 9.0], excess_losses=[0.0, float(np.log(7 / 3))]))
    np.testing.assert_allclose(second.weights, [0.5, 0.5], rtol=1e-14)
    assert policy.averaged_weights == pytest.approx({"a": 0.6, "b": 0.4}, rel=1e-14)
    # The result is the mixture of a second run.
    np.testing.assert_allclose(Fixed(policy.averaged_weights).start(mixture(OWN)).weights, [0.6, 0.4], rtol=1e-14)


def test_by_hand_from_recorded_losses() -> None:
    """Excesses max(L − ref, 0) = (ln 3, 0), the second stream being better than its reference."""
    shown = observe(1, [2.0 + LN3, 3.0], excess_losses=[0.0, 99.0])
    _, decision = led(DoReMi(1.0, 0.2, {"b": 4.0, "a": 2.0}, "sampling"), [shown], OWN)
    np.testing.assert_allclose(decision.weights, [0.7, 0.3], rtol=1e-14)


def test_by_default_the_losses_are_weighed_and_streams_are_drawn_by_their_own_weights() -> None:
    _, decision = led(DoReMi(1.0, 0.2), [FIRST], OWN)
    assert decision.weights.tolist() == OWN
    np.testing.assert_allclose(decision.weights * decision.loss_weights, [0.7, 0.3], rtol=1e-14)


def test_the_average_counts_steps_without_losses_but_no_stream_of_weight_0() -> None:
    policy, rows = DoReMi(1.0, 0.0), [None, [LN3, 0.0, 50.0], [NAN] * 3]  # the first is uniform as before
    led(policy, [observe(step, [1.0] * 3, excess_losses=row) for step, row in enumerate(rows, 1)], [*OWN, 0.0])
    assert policy.averaged_weights == pytest.approx({"a": (0.5 + 0.75 + 0.75) / 3, "b": 1 / 3, "c": 0.0}, rel=1e-14)
