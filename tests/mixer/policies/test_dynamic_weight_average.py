import math

import numpy as np

from mixer.policies import DWA, Decision
from tests.mixer.policies.observed import led, observe

# Means of the windows: (3, 2), then (1.5, 2): ratios (1/2, 1).
ROWS = [[4.0, 2.0], [2.0, 2.0], [2.0, 1.0], [1.0, 3.0]]
OWN = (0.25, 0.75)


def run(policy: DWA, rows: list[list[float]], own: tuple[float, ...] = OWN) -> list[Decision]:
    return led(policy, [observe(step, row) for step, row in enumerate(rows, 1)], own)


def test_by_hand() -> None:
    decisions = run(DWA(2.0, 2), [*ROWS, [9.0, 9.0]])
    first, second = 0.25 * math.exp(0.25), 0.75 * math.exp(0.5)
    decided = [first / (first + second), second / (first + second)]  # after two windows, until the next one is over
    expected = [*[OWN] * 4, decided, decided]
    np.testing.assert_allclose([decision.weights for decision in decisions], expected, rtol=1e-12)


def test_gaps_are_left_out_of_the_means() -> None:
    gaps = [[4.0, 2.0], [2.0, math.nan], [math.inf, 1.0], [1.5, 3.0]]
    np.testing.assert_allclose(run(DWA(2.0, 2), gaps)[-1].weights, run(DWA(2.0, 2), ROWS)[-1].weights, rtol=1e-12)


def test_a_stream_without_a_loss_in_a_window_has_the_ratio_1_and_keeps_its_mean() -> None:
    absent = [[3.0, 2.0], [math.nan, 1.0], [1.5, 1.0]]  # ratios (1, 1/2), then (1.5 / 3, 1)
    _, _, second, third = run(DWA(1.0, 1), absent, (0.5, 0.5))
    np.testing.assert_allclose([second.weights[0], third.weights[1]], 1 / (1 + math.exp(-0.5)), rtol=1e-12)
    for first, second in ((0.0, 1.0), (-2.0, 1.0), (1.0, 0.0), (1.0, -1.0)):  # nor has one that is not above 0
        np.testing.assert_allclose(run(DWA(2.0, 1), [[first, 1.0], [second, 1.0]])[-1].weights, OWN)
