from typing import Any

import numpy as np
import pytest

from mixer.policies import Observation, TargetLoss
from tests.mixer.policies.observed import NAN, led, observe, weights_of

LN2, LN3 = float(np.log(2)), float(np.log(3))
TARGETS = {"b": 2.0, "a": 1.0, "c": 3.0}
OWN = [0.2, 0.2, 0.6]


def evaluated(step: int, losses: list[float], **shown: Any) -> Observation:
    return observe(step, [7.0] * len(losses), evaluation_losses=losses, **shown)


@pytest.mark.parametrize(
    ("arguments", "losses", "expected"),
    [
        # Gaps (ln 3, 0, −ln 2) are cut to (ln 3, 0, 0): (0.6, 0.2, 0.6)/1.4.
        ({"smoothing": 0.0}, [1 + LN3, 2.0, 3 - LN2], [3 / 7, 1 / 7, 3 / 7]),
        # Not cut in the form of the code: (0.6, 0.2, 0.3)/1.1, then smoothed with c = 0.1.
        ({"form": "code", "smoothing": 0.1}, [1 + LN3, 2.0, 3 - LN2], 0.9 * np.array([6, 2, 3]) / 11 + 0.1 / 3),
        # All at their targets.
        ({"smoothing": 0.0}, [0.5, 2.0, -9.0], OWN),
        # An evaluation without losses moves nothing.
        ({}, [NAN, np.inf, NAN], OWN),
    ],
)
def test_by_hand(arguments: dict[str, Any], losses: list[float], expected: Any) -> None:
    between = observe(2, [9.0, 1.0, 1.0])
    first, second, later = led(TargetLoss(TARGETS, **arguments), [evaluated(1, losses), between], OWN)
    np.testing.assert_allclose(first.weights, OWN, rtol=1e-14)
    np.testing.assert_allclose(second.weights, expected, rtol=1e-14)
    np.testing.assert_array_equal(later.weights, second.weights)


def test_the_least_share_by_default_but_for_a_stream_of_weight_0() -> None:
    """c/K with c = 1e-4, however far the others are above their targets."""
    course = [evaluated(step, [1.0, 90.0, 3.0]) for step in range(1, 50)]
    np.testing.assert_allclose(weights_of(TargetLoss(TARGETS), *course, own=OWN)[[0, 2]], 1e-4 / 3, rtol=1e-9)
    out = weights_of(TargetLoss(TARGETS), *course, own=[0.4, 0.0, 0.6])
    np.testing.assert_allclose(out, [0.4 + 0.1 * (1 - 0.9999**49), 0.0, 0.6 - 0.1 * (1 - 0.9999**49)])


def test_a_stream_that_was_not_evaluated_or_is_not_there_keeps_its_share() -> None:
    course = [evaluated(1, [99.0, NAN, 3.0]), evaluated(2, [99.0, 99.0, 3.0], shares=[0.5, 0.0, 0.5])]
    for decision in led(TargetLoss(TARGETS, smoothing=0.0), course, OWN):
        assert decision.weights[1] == pytest.approx(0.2)
