import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies.shared.simplex_programme import RIDGE, minimise_quadratic, positive_part, project

seeds = st.integers(0, 10_000)
sizes = st.integers(1, 8)


def problem(seed: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A convex programme, often of a rank below its size, whose bounds leave room."""
    random = np.random.default_rng(seed)
    factor = random.normal(size=(size, random.integers(1, size + 2)))
    own = random.dirichlet(np.ones(size))
    lower = own * random.random(size) * random.integers(0, 2)
    upper = np.minimum(1.0, own * (1.0 + random.exponential(2.0, size)))
    return factor @ factor.T, 3.0 * random.normal(size=size), lower, upper


def whole(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """No bounds but the simplex, and its centre."""
    return np.zeros(size), np.ones(size), np.full(size, 1.0 / size)


class TestByHand:
    @pytest.mark.parametrize(
        ("quadratic", "linear", "expected"),
        [
            # Equal slopes: 2 w₁ − 1 = 2 (1 − w₁): w₁ = 3/4.
            ([[2, 0], [0, 2]], [-1, 0], [0.75, 0.25]),
            # With a product: 2w₁ + w₂ − 1 = w₁ + 2w₂, w₁ − w₂ = 1: at the corner.
            ([[2, 1], [1, 2]], [-1, 0], [1, 0]),
            # w₁ = 2 w₂ and no more for the third, whose slope 3 lies above the level 4/3.
            ([[2, 0, 0], [0, 4, 0], [0, 0, 1]], [0, 0, 3], [2 / 3, 1 / 3, 0]),
            ([[1]], [5], [1]),
            # A line: its least corner; none: the centre.
            ([[0, 0], [0, 0]], [2, 1], [0, 1]),
            ([[0, 0], [0, 0]], [0, 0], [0.5, 0.5]),
            # (w₁ + w₂ − ½ w₃)²/… is flat between the first two, which stay alike: w₃ = 1 − 2x, 2x = ½(1 − 2x), x = 1/6.
            ([[1, 1, -0.5], [1, 1, -0.5], [-0.5, -0.5, 0.25]], [0, 0, 0], [1 / 6, 1 / 6, 2 / 3]),
        ],
    )
    def test_on_the_simplex(self, quadratic: list, linear: list, expected: list) -> None:
        lower, upper, centre = whole(len(linear))
        found = minimise_quadratic(np.array(quadratic, float), np.array(linear, float), lower, upper, centre)
        np.testing.assert_allclose(found, expected, atol=1e-5)

    def test_within_bounds(self) -> None:
        # Without bounds 3/4 and 1/4; the first may have 0.6 at most.
        linear, upper, half = np.array([-1.0, 0.0]), np.array([0.6, 1.0]), np.full(2, 0.5)
        np.testing.assert_allclose(minimise_quadratic(2 * np.eye(2), linear, np.zeros(2), upper, half), [0.6, 0.4])
        own = np.array([0.2, 0.3, 0.5])  # bounds that leave one choice
        np.testing.assert_allclose(minimise_quadratic(np.eye(3), np.ones(3), own, own, own), own)
        with pytest.raises(ValueError, match="No weights that sum to 1 lie between"):
            minimise_quadratic(np.eye(2), np.ones(2), np.array([0.6, 0.6]), np.ones(2), np.full(2, 0.5))


class TestOptimality:
    @given(seed=seeds, size=sizes)
    def test_kkt(self, seed: int, size: int) -> None:
        """Free weights share one slope; those at the lower bound have no smaller, those at the upper no larger one."""
        quadratic, linear, lower, upper = problem(seed, size)
        centre = project(np.full(size, 1 / size), lower, upper)
        found = minimise_quadratic(quadratic, linear, lower, upper, centre)
        assert found.sum() == pytest.approx(1.0, abs=1e-12)
        assert (found >= lower).all()
        assert (found <= upper).all()
        scale = max(np.abs(quadratic).max(), np.abs(linear).max())
        slope = (quadratic @ found + linear) / scale + RIDGE * (found - centre)
        may_rise, may_fall = found < upper - 1e-12, found > lower + 1e-12
        assert slope[may_fall].max(initial=-np.inf) <= slope[may_rise].min(initial=np.inf) + 1e-9

    @given(seed=seeds, size=sizes, scale=st.sampled_from([1e-200, 1e-3, 1e5, 1e200]))
    def test_the_order_of_the_streams_and_a_common_scale_say_nothing(self, seed: int, size: int, scale: float) -> None:
        quadratic, linear, lower, upper = problem(seed, size)
        order, centre = np.random.default_rng(seed).permutation(size), np.full(size, 1 / size)
        found = minimise_quadratic(quadratic, linear, lower, upper, centre)
        pairs = np.ix_(order, order)
        again = minimise_quadratic(scale * quadratic[pairs], scale * linear[order], lower[order], upper[order], centre)
        np.testing.assert_allclose(again, found[order], atol=1e-9)


class TestProjection:
    @given(seed=seeds, size=sizes)
    def test_it_is_the_nearest_point(self, seed: int, size: int) -> None:
        """For the projection p of y and any feasible x, (y − p)·(x − p) is 0 or less."""
        random = np.random.default_rng(seed)
        _, _, lower, upper = problem(seed, size)
        point = random.normal(size=size)
        nearest = project(point, lower, upper)
        assert nearest.sum() == pytest.approx(1.0, abs=1e-12)
        assert ((nearest >= lower) & (nearest <= upper)).all()
        for _ in range(20):
            other = project(random.normal(size=size), lower, upper)
            assert (point - nearest) @ (other - nearest) <= 1e-9


def test_the_positive_part_keeps_what_is_positive() -> None:
    # Eigenvalues 3 and −1 along (1, 1)/√2 and (1, −1)/√2: 3 · ½ [[1, 1], [1, 1]] is left.
    np.testing.assert_allclose(positive_part(np.array([[1.0, 2.0], [2.0, 1.0]])), np.full((2, 2), 1.5))
    kept = np.array([[2.0, 1.0], [1.0, 2.0]])
    np.testing.assert_array_equal(positive_part(kept), kept)
