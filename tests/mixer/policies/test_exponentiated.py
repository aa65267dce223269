import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies.exponentiated import exponentiated_step

NAN = float("nan")
values_of_three = st.lists(
    st.one_of(st.floats(-1e308, 1e308), st.sampled_from([NAN, np.inf, -np.inf])), min_size=3, max_size=3
)


def step(weights: list[float], values: list[float], step_size: float = 1.0, smoothing: float = 0.0) -> list[float]:
    return exponentiated_step(np.array(weights), np.array(values), step_size, smoothing).tolist()


def test_by_hand() -> None:
    """(1/4 · e^{2 ln 3 / 2}, 3/4 · e^0) = (3/4, 3/4), so half each."""
    assert step([0.25, 0.75], [2 * np.log(3), 0.0], 0.5) == pytest.approx([0.5, 0.5], rel=1e-14)


def test_smoothing_by_hand() -> None:
    """0.8 · (0.5, 0.5, 0) + 0.2/3."""
    smoothed = step([0.25, 0.75, 0.0], [np.log(3), 0.0, 5.0], 1.0, 0.2)
    assert smoothed == pytest.approx([0.4 + 0.2 / 3, 0.4 + 0.2 / 3, 0.2 / 3], rel=1e-14)


def test_streams_without_a_value_keep_their_share() -> None:
    """The other two share 0.8: (0.2 · 3, 0.6) = (0.6, 0.6), so 0.4 each."""
    assert step([0.2, 0.2, 0.6], [NAN, np.log(3), 0.0]) == pytest.approx([0.2, 0.4, 0.4], rel=1e-14)
    assert step([0.2, 0.2, 0.6], [np.inf, np.log(3), 0.0]) == pytest.approx([0.2, 0.4, 0.4], rel=1e-14)


def test_no_values_change_nothing() -> None:
    assert step([0.2, 0.8], [NAN, NAN]) == [0.2, 0.8]


def test_values_that_overflow_pick_the_largest() -> None:
    assert step([0.5, 0.5], [1.7e308, 1.0], 1e10) == [1.0, 0.0]
    assert step([0.5, 0.5], [-1.7e308, 1.0], 1e10) == [0.0, 1.0]


@given(values=values_of_three, step_size=st.floats(0, 1e6), smoothing=st.floats(0, 1))
def test_it_stays_on_the_simplex_above_the_least_share(values, step_size: float, smoothing: float) -> None:
    weights = np.array(step([0.1, 0.2, 0.7], values, step_size, smoothing))
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights.min() >= smoothing / 3 - 1e-15


@given(values=st.lists(st.floats(-5, 5), min_size=3, max_size=3), shift=st.floats(-100, 100))
def test_only_differences_matter(values, shift: float) -> None:
    weights = [0.1, 0.2, 0.7]
    assert step(weights, [v + shift for v in values]) == pytest.approx(step(weights, values), rel=1e-9)


@given(values=st.lists(st.floats(-5, 5), min_size=3, max_size=3))
def test_two_steps_are_one_of_twice_the_size(values) -> None:
    twice = step(step([0.1, 0.2, 0.7], values, 0.5), values, 0.5)
    assert twice == pytest.approx(step([0.1, 0.2, 0.7], values, 1.0), rel=1e-9)
