from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mixer.policies import DWA, CoBa, Observation, Policy
from mixer.policies.shared.decisions import decide
from tests.mixer.policies.observed import NAN, led, observe

MAKERS: dict[str, Callable[..., Policy]] = {
    "CoBa": lambda **how: CoBa(3, 2, **how),
    "DWA": lambda **how: DWA(0.2, 2, **how),
}
OWN = [0.1, 0.0, 0.5, 0.4]


def course(num_steps: int) -> list[Observation]:
    rows: Any = np.exp(np.random.default_rng(0).normal(size=(num_steps, 4)) / 3)
    steps = enumerate(rows, start=1)
    return [observe(step, row, evaluation_losses=row) for step, row in steps]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_on_average_the_gradient_is_the_same(make: Callable[..., Policy]) -> None:
    # Σ_k w_k f_k ∇L_k has the same coefficients, whether w or f is moved.
    sampling, loss = led(make(acts_on="sampling"), course(9), OWN), led(make(acts_on="loss"), course(9), OWN)
    for by_samples, by_losses in zip(sampling, loss, strict=True):
        assert by_samples.loss_weights is None
        assert by_samples.weights[1] == 0.0  # has no weight of its own
        np.testing.assert_allclose(by_losses.weights, OWN)
        np.testing.assert_allclose(by_losses.weights * by_losses.loss_weights, by_samples.weights, rtol=1e-12)
        assert by_losses.weights @ by_losses.loss_weights == pytest.approx(1.0)
    assert loss[0].loss_weights.tolist() == [1.0] * 4
    assert np.ptp([decision.loss_weights for decision in loss], axis=0).max() > 0.1, "the factors do move"


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_a_stream_that_left_waits_with_its_own_weight(make: Callable[..., Policy]) -> None:
    shown = {"losses": [1, 1, 1, NAN], "evaluation_losses": [1, 1, 1, NAN]}
    gone = observe(10, **shown, shares=[0.5, 0, 0.5, 0])  # type: ignore[arg-type]
    assert led(make(), [*course(9), gone], OWN)[-1].weights[3] == pytest.approx(0.4)


def test_by_hand() -> None:
    # own * factor = (0.1, 0.6) with a sum of 0.7; the third stream is not there and waits with its 0.3.
    own, factors, active = np.array([0.5, 0.2, 0.3]), np.array([0.2, 3.0, 9.0]), np.array([True, True, False])
    np.testing.assert_allclose(decide(factors, own, active, "sampling").weights, [0.1, 0.6, 0.3])
    weighed = decide(factors, own, active, "loss")
    np.testing.assert_allclose(weighed.weights, own)
    np.testing.assert_allclose(weighed.loss_weights, [0.2, 3.0, 1.0])  # over (0.1 + 0.6) / (0.5 + 0.2) = 1
