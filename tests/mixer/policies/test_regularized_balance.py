import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import RegularizedBalance
from mixer.policies.regularized_balance import balanced
from tests.mixer.policies.gradients import measured, mixture_of

seeds = st.integers(0, 10_000)


def programme(weights: np.ndarray, gram: np.ndarray, importance: np.ndarray, strength: float) -> np.ndarray:
    """pᵀGw − (‖Gp‖/λ) Σ w log w, of mixtures in rows."""
    products = gram @ importance
    entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1)
    return weights @ products + np.linalg.norm(products) / strength * entropy


def drawn(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    factor = random.normal(size=(size, 4))
    return factor @ factor.T, random.dirichlet(np.ones(size))


class TestProgramme:
    def test_by_hand(self) -> None:
        # Gp = ½ (6, 8) = (3, 4), of norm 5: λ = 2 gives scores 1.2 and 1.6.
        found = balanced(np.array([[4.0, 2], [2, 6]]), np.array([0.5, 0.5]), 2.0)
        np.testing.assert_allclose(found, [1 / (1 + np.exp(0.4)), 1 / (1 + np.exp(-0.4))])

    @given(seed=seeds, strength=st.sampled_from([0.3, 1.0, 5.0]))
    def test_no_mixture_on_a_grid_is_better(self, seed: int, strength: float) -> None:
        gram, importance = drawn(seed, 3)
        first, second = np.meshgrid(np.arange(101), np.arange(101))
        inside = first + second <= 100
        grid = np.stack([first[inside], second[inside], 100 - first[inside] - second[inside]], axis=1) / 100
        best = programme(balanced(gram, importance, strength), gram, importance, strength)
        assert best >= programme(grid, gram, importance, strength).max() - 1e-9

    @given(seed=seeds, size=st.integers(1, 7))
    def test_kkt(self, seed: int, size: int) -> None:
        """All weights are positive, so that all have one slope: `(Gp)_k − (‖Gp‖/λ)(log w_k + 1)`."""
        gram, importance = drawn(seed, size)
        weights = balanced(gram, importance, 2.0)
        assert weights.sum() == pytest.approx(1.0)
        products = gram @ importance
        slopes = products / np.linalg.norm(products) - (np.log(weights) + 1) / 2.0
        assert np.ptp(slopes) < 1e-9

    @given(seed=seeds, scale=st.sampled_from([1e-300, 1e-5, 1e8, 1e300]))
    def test_units_say_nothing(self, seed: int, scale: float) -> None:
        gram, importance = drawn(seed, 4)
        np.testing.assert_allclose(balanced(scale * gram, importance, 3.0), balanced(gram, importance, 3.0), rtol=1e-6)

    def test_its_ends(self) -> None:
        gram, importance = drawn(1, 4)
        np.testing.assert_allclose(balanced(gram, importance, 0.0), 0.25)
        assert balanced(gram, importance, 300.0).argmax() == (gram @ importance).argmax()
        assert balanced(np.zeros((2, 2)), np.array([0.5, 0.5]), 3.0) is None


class TestPolicy:
    def test_weights_are_overwritten_not_multiplied(self) -> None:
        policy = RegularizedBalance(None, 1, 2.0, decay=0.0)
        policy.start(mixture_of([0.5, 0.5]))
        batch = measured([4, 6], [0, 0], [30, 30], gram=[[9, 2], [2, 9]])  # the noise in the diagonal is left out
        for _ in range(3):
            weights = policy.update(batch).weights
            np.testing.assert_allclose(weights, [1 / (1 + np.exp(0.4)), 1 / (1 + np.exp(-0.4))])

    def test_targets(self) -> None:
        policy = RegularizedBalance(["stream 0"], 1, 2.0)
        policy.start(mixture_of([0.5, 0.5]))
        # G (1, 0) = (4, 3), over 5.
        weights = policy.update(measured([4, 9], [0, 0], [30, 30], gram=[[4, 3], [3, 9]])).weights
        np.testing.assert_allclose(weights, [1 / (1 + np.exp(-0.4)), 1 / (1 + np.exp(0.4))])

    def test_the_own_weights_are_what_is_evaluated(self) -> None:
        policy = RegularizedBalance(None, 1, 2.0, min_samples=0)
        policy.start(mixture_of([0.25, 0.75]))
        weights = policy.update(measured([16, 4], [0, 0], [15, 45])).weights  # Gp = (4, 3)
        np.testing.assert_allclose(weights, [1 / (1 + np.exp(-0.4)), 1 / (1 + np.exp(0.4))])

    def test_without_a_target_that_is_there_the_weights_hold(self) -> None:
        policy = RegularizedBalance(["stream 1"], 1)
        policy.start(mixture_of([0.4, 0.6]))
        nan = float("nan")
        assert policy.update(measured([4, nan], [1, nan], [60, 1])).weights.tolist() == [0.4, 0.6]

    def test_least_samples(self) -> None:
        policy = RegularizedBalance(None, 1, 300.0)
        policy.start(mixture_of([0.5, 0.5]))
        assert policy.update(measured([4, 1], [0, 0], [20, 20])).weights[1] == pytest.approx(2 / 40)


def test_a_strength_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"strength must be in \[0, 300\], got -1.0; 3 is the paper's"):
        RegularizedBalance(strength=-1.0)
