import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies import CoBa, Decision
from mixer.policies.shared.slopes import slopes_of
from tests.mixer.policies.observed import led, observe


def run(policy: CoBa, rows: list[list[float]], own: tuple[float, ...] = (0.5, 0.5), apart: int = 10) -> list[Decision]:
    return led(policy, [observe(apart * n, evaluation_losses=row) for n, row in enumerate(rows, 1)], own)


def logistic(score: float) -> float:
    return 1 / (1 + math.exp(-score))


# Over the first losses: (1, 1), (1/2, 3/2), (1/4, 5/2): slopes over two evaluations (-0.05, 0.05), then (-0.025, 0.1).
ROWS = [[4.0, 2.0], [2.0, 3.0], [1.0, 5.0]]


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        ({}, logistic(2)),  # t = 1, so D = 1 and RCS alone counts: K α / Σ|α| = (-1, 1)
        ({"sharpen": True}, logistic(2 * (logistic(2) - logistic(-2)))),  # the last step of the public code
        ({"floor": 0.5}, 0.75),  # a multiple of an even share
        ({"floor": 1.0}, 0.5),
    ],
)
def test_the_first_scores_by_hand(arguments: dict[str, Any], share: float) -> None:
    _, early, second, _ = run(CoBa(2, 2, **arguments), ROWS)
    np.testing.assert_allclose(early.weights, [0.5, 0.5])
    np.testing.assert_allclose(second.weights, [1 - share, share], rtol=1e-12)


def test_a_stream_that_diverges_by_hand() -> None:
    # RCS: 2 (-0.025, 0.1) / 0.125 = (-0.4, 1.6). ACS: -2 (-0.025) / 0.075 = 2/3 and -2 (0.1) / 0.15 = -4/3.
    # D: scores -5 · 2 (0.05, 0.1) / 0.15 = (-10/3, -20/3), so 2 softmax = 2 / (1 + e^(10/3)).
    last = run(CoBa(2, 2), ROWS)[-1]
    share = 2 * logistic(-10 / 3)
    expected = share * logistic(-2) + (1 - share) * logistic(2)
    np.testing.assert_allclose(last.weights, [expected, 1 - expected], rtol=1e-12)
    assert last.weights[1] < 0.2, "it rises: less of it"


def test_losses_in_another_unit_and_evaluations_at_other_intervals_are_the_same() -> None:
    expected = run(CoBa(2, 2), ROWS)[-1].weights
    scaled = [[100 * first, second] for first, second in ROWS]
    np.testing.assert_allclose(run(CoBa(2, 2), scaled)[-1].weights, expected, rtol=1e-12)
    np.testing.assert_allclose(run(CoBa(2, 2), ROWS, apart=7000)[-1].weights, expected, rtol=1e-12)


def test_what_is_not_known_has_an_even_part_and_poisons_nothing() -> None:
    rows = [[*row, unknown] for row, unknown in zip(ROWS, (math.nan, 0.0, -1.0), strict=True)]
    last = run(CoBa(2, 2), rows, (1.0, 1.0, 1.0))[-1]
    np.testing.assert_allclose(last.weights, [*(2 / 3 * run(CoBa(2, 2), ROWS)[-1].weights), 1 / 3], rtol=1e-12)


def test_a_stream_that_comes_later_is_measured_by_its_own_first_loss() -> None:
    policy = CoBa(2, 2)
    run(policy, [[4.0, math.nan], *[[8.0 * first, 2.0 * first] for first in (1.0, 0.5, 0.25)]])
    assert policy.state_dict()["ratios"] == [[1.0, 0.5], [0.5, 0.25]]


class TestSlopes:
    def test_by_hand(self) -> None:
        # Around (1, 2): (-1, -2), (0, 1), (1, 1), so 3 / 2; through two points; from one point nothing.
        rows = np.array([[0.0, 5.0, 1.0], [3.0, np.nan, np.nan], [3.0, 1.0, np.nan]])
        np.testing.assert_array_equal(slopes_of(np.arange(3.0), rows), [1.5, -2.0, np.nan])
        assert np.isnan(slopes_of(np.array([3.0, 3.0]), np.array([[1.0], [2.0]]))).all()  # at one position

    @given(st.lists(st.floats(-5, 5), min_size=2, max_size=30), st.floats(0, 1e7))
    def test_far_from_the_origin_it_is_that_of_numpy(self, values: list[float], offset: float) -> None:
        found = slopes_of(offset + np.arange(len(values)), np.array(values)[:, None])
        np.testing.assert_allclose(found, np.polyfit(np.arange(len(values)), values, 1)[0], rtol=1e-6, atol=1e-8)
