import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies.shared.exponentiated import ExponentiatedWeights, exponentiated_step

NAN, LN3 = float("nan"), float(np.log(3))
values_of_three = st.lists(
    st.one_of(st.floats(-1e308, 1e308), st.sampled_from([NAN, np.inf, -np.inf])), min_size=3, max_size=3
)
usual = st.lists(st.floats(-5, 5), min_size=3, max_size=3)


def begun(weights: list[float]) -> ExponentiatedWeights:
    kept = ExponentiatedWeights()
    kept.start(np.array(weights))
    return kept


def step(weights: list[float], values: list[float], step_size: float = 1.0) -> list[float]:
    """A step of weights, which one of their logarithms has to be like."""
    found, kept = exponentiated_step(np.array(weights), np.array(values), step_size), begun(weights)
    kept.step(np.array(values), step_size, 0.0)
    np.testing.assert_allclose(kept.weights, found, rtol=1e-12, atol=1e-300)
    return found.tolist()


def smooth_step(weights: list[float], values: list[float], step_size: float, smoothing: float) -> list[float]:
    kept = begun(weights)
    kept.step(np.array(values), step_size, smoothing)
    return kept.weights.tolist()


@pytest.mark.parametrize(
    ("weights", "values", "step_size", "expected"),
    [
        # (1/4 · e^{2 ln 3 / 2}, 3/4 · e^0) = (3/4, 3/4), so half each.
        ([0.25, 0.75], [2 * LN3, 0.0], 0.5, [0.5, 0.5]),
        # A stream without a value keeps its share. The other two share 0.8: (0.2 · 3, 0.6) = (0.6, 0.6).
        *[([0.2, 0.2, 0.6], [nothing, LN3, 0.0], 1.0, [0.2, 0.4, 0.4]) for nothing in (NAN, np.inf)],
        ([0.2, 0.8], [NAN, NAN], 1.0, [0.2, 0.8]),
        # Values that overflow pick the largest.
        *[([0.5, 0.5], [sign * 1.7e308, 1.0], 1e10, [sign > 0, sign < 0]) for sign in (1, -1)],
    ],
)
def test_by_hand(weights: list[float], values: list[float], step_size: float, expected: list[float]) -> None:
    assert step(weights, values, step_size) == pytest.approx(np.array(expected, float), rel=1e-14)


def test_smoothing_by_hand() -> None:
    # 0.8 · (0.5, 0.25, 0.25) + 0.2/3.
    found = smooth_step([0.25, 0.375, 0.375], [LN3, 0.0, 0.0], 1.0, 0.2)
    assert found == pytest.approx([0.4 + 0.2 / 3, 0.2 + 0.2 / 3, 0.2 + 0.2 / 3], rel=1e-14)
    # What has no weight gets none: 0.8 · (0.5, 0.5) + 0.2/2, the third is out.
    assert smooth_step([0.25, 0.75, 0.0], [LN3, 0.0, 5.0], 1.0, 0.2) == pytest.approx([0.5, 0.5, 0.0], rel=1e-14)


def test_small_weights_are_kept_apart_beside_a_large_one() -> None:
    kept, others = begun([0.5, 0.25, 0.25]), np.array([False, True, True])
    kept.step(np.array([5000.0, 1000.0 + LN3, 1000.0]), 1.0, 0.0)
    assert kept.weights.tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(kept.shares(others), [0.0, 0.75, 0.25], rtol=1e-10)
    assert (kept.mixture(np.ones(3, dtype=np.bool_)) > 0.0).all()
    mixture = kept.mixture(others)
    np.testing.assert_allclose(mixture[1:] / mixture[1:].sum(), [0.75, 0.25], rtol=1e-10)
    assert mixture[0] == pytest.approx(1.0)


@given(values=values_of_three, step_size=st.floats(0, 1e6), smoothing=st.floats(0, 1))
def test_it_stays_on_the_simplex_above_the_least_share(values: list[float], step_size: float, smoothing: float) -> None:
    weights = np.array(smooth_step([0.1, 0.2, 0.7], values, step_size, smoothing))
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights.min() >= smoothing / 3 - 1e-15


@given(values=usual, shift=st.floats(-100, 100))
def test_only_differences_matter_and_two_steps_are_one_of_twice_the_size(values: list[float], shift: float) -> None:
    expected = step([0.1, 0.2, 0.7], values)
    assert step([0.1, 0.2, 0.7], [v + shift for v in values]) == pytest.approx(expected, rel=1e-9)
    assert step(step([0.1, 0.2, 0.7], values, 0.5), values, 0.5) == pytest.approx(expected, rel=1e-9)
