from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import Decision
from replay.policies import ForgettingAware
from tests.replay.policies.updates import MEMORIES, MIXED, shown


def started(*arguments: Any, **options: Any) -> ForgettingAware:
    policy = ForgettingAware(*arguments, **options)
    policy.start(MIXED)
    return policy


def see(policy: ForgettingAware, *pairs: tuple[float, float], others: tuple[float, ...] = (1.0, 2.0, 3.0)) -> Decision:
    """Shows losses of both memories, one pair a step."""
    return [policy.update(shown(5, losses=[early, others[0], late, *others[1:]])) for early, late in pairs][-1]


def ratio_of(decision: Decision) -> float:
    return float(decision.weights[MEMORIES].sum())


def shares_of(decision: Decision) -> list[float]:
    return (decision.weights[MEMORIES] / decision.weights[MEMORIES].sum()).tolist()


def test_by_hand() -> None:
    policy = ForgettingAware(0.1, 0.5, temperature=0.25, smoothing=0.0)
    assert ratio_of(policy.start(MIXED)) == pytest.approx(0.1)
    decision = see(policy, (2.0, 1.0), (1.0, 1.0), (2.0, 1.0))
    # The first has doubled its loss since it was least, the second is as it was.
    np.testing.assert_allclose(policy.forgotten, [0.5, 0.0])
    assert ratio_of(decision) == pytest.approx(0.1 + 0.4 * 0.25)
    assert shares_of(decision)[0] / shares_of(decision)[1] == pytest.approx(np.exp(2.0))


def test_smoothed_by_hand() -> None:
    policy = started(smoothing=0.5)
    see(policy, (4.0, 1.0), (1.0, 1.0), (1.0, 1.0), (3.0, 1.0))
    # Averages without bias, weighing 1, 1/2, 1/4: 4, 2, 10/7, then (3·8 + 1·4 + 1·2 + 4·1)/15 = 34/15.
    lowest, now = 10 / 7, 34 / 15
    assert policy.forgotten[0] == pytest.approx((now - lowest) / now)


def test_a_memory_that_appears_late_begins_then() -> None:
    policy = started(smoothing=0.0)
    assert shares_of(see(policy, *[(1.0, np.nan)] * 6)) == [0.5, 0.5]
    see(policy, (1.0, 7.0))
    assert not policy.forgotten.any()
    assert shares_of(see(policy, (1.0, 14.0)))[1] > 0.8


def test_losses_that_are_none_and_those_of_others_change_nothing() -> None:
    policy, other = started(smoothing=0.5), started(smoothing=0.5)
    before = see(policy, (1.0, 2.0), (2.0, 2.0), (3.0, 2.0))
    see(other, (1.0, 2.0), (2.0, 2.0), (3.0, 2.0), others=(9.0, np.nan, 0.0))
    for nothing in (np.nan, np.inf, -np.inf):
        for each in (policy, other):
            np.testing.assert_array_equal(see(each, (nothing, nothing)).weights, before.weights)


@given(
    course=st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=1, max_size=12),
    scale=st.sampled_from([1e-6, 0.5, 3.0, 1e6]),
)
def test_the_unit_of_the_loss_does_not_matter(course: list[tuple[float, float]], scale: float) -> None:
    other = [(scale * early, scale * late) for early, late in course]
    plain, scaled = started(smoothing=0.5), started(smoothing=0.5)
    np.testing.assert_allclose(see(scaled, *other).weights, see(plain, *course).weights, rtol=1e-6)


@given(course=st.lists(st.tuples(st.floats(-5, 10), st.floats(-5, 10)), min_size=1, max_size=12))
def test_ratio_and_shares_stay_in_their_bounds(course: list[tuple[float, float]]) -> None:
    decision = see(started(0.1, 0.4, temperature=0.5, smoothing=0.3), *course)
    assert 0.1 - 1e-12 <= ratio_of(decision) <= 0.4 + 1e-12
    assert min(shares_of(decision)) >= 1 / (1 + np.exp(2.0)) - 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"minimum": low, "maximum": 0.4}, "0 < minimum <= maximum < 1 must hold") for low in (0.0, 0.5)),
        *(({name: np.nan}, "0 < minimum <= maximum < 1 must hold, got") for name in ("minimum", "maximum")),
        *(({"temperature": value}, "temperature must be") for value in (0.0, np.inf, np.nan)),
        ({"smoothing": 1.0}, r"smoothing must be in \[0, 1\), got 1.0"),
    ],
)
def test_values_outside_their_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ForgettingAware(**options)
