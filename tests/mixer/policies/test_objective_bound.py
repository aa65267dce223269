import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies.shared.evidence import LEAST_MEASUREMENTS, Evidence
from mixer.policies.shared.objective_bound import ObjectiveBound

seeds = st.integers(0, 10_000)


def drawn(seed: int, size: int, noise: float = 1.0) -> ObjectiveBound:
    random = np.random.default_rng(seed)
    factor = random.normal(size=(size, 6))
    return ObjectiveBound(factor @ factor.T, noise * random.exponential(5.0, size), random.dirichlet(np.ones(size)))


def best(bound: ObjectiveBound, step: float) -> np.ndarray:
    size = len(bound.noise)
    return bound.best_weights(np.full(size, 1 / size), np.zeros(size), np.ones(size), step)


class TestBound:
    def test_by_hand(self) -> None:
        # aᵀGw = ½·(4·¾ + 1·¼) = 1.625; wᵀGw = 4·9/16 + 1/16 = 2.3125; wᵀν = 0.75 + 0.5 = 1.25.
        bound = ObjectiveBound(np.diag([4.0, 1.0]), np.array([1.0, 2.0]), np.array([0.5, 0.5]))
        weights = np.array([0.75, 0.25])
        assert bound.square(weights) == pytest.approx(3.5625)
        assert bound.fall(weights, 0.5) == pytest.approx(0.5 * 1.625 - 0.125 * 3.5625)

    @given(seed=seeds)
    def test_it_holds_on_quadratics_and_is_exact_in_the_mean(self, seed: int) -> None:
        """L_i = ½||θ − c_i||² at 0: g_i = −c_i, L = 1, F falls by s aᵀGw − ½ s² ||Gw||² exactly."""
        random = np.random.default_rng(seed)
        optima, weights, importance = random.normal(size=(3, 5)), random.dirichlet([1] * 3), random.dirichlet([1] * 3)
        bound = ObjectiveBound(optima @ optima.T, np.zeros(3), importance)
        after = 0.3 * weights @ optima
        losses = 0.5 * (optima**2).sum(axis=1) - 0.5 * ((after - optima) ** 2).sum(axis=1)
        assert bound.fall(weights, 0.3) == pytest.approx(float(importance @ losses))


class TestBestWeights:
    @given(seed=seeds, size=st.integers(1, 7))
    def test_without_noise_the_objective_itself_is_the_best_mixture(self, seed: int, size: int) -> None:
        """Cauchy-Schwarz: aᵀGw ≤ ||g_a|| ||g_w||, however large one stream's gradients are."""
        bound = drawn(seed, size, noise=0.0)
        weights = best(bound, 1.0)
        assert bound.fall(weights, 1.0) == pytest.approx(bound.fall(bound.importance, 1.0), rel=1e-4)
        if size <= 5:  # the gradients span as many directions, so that no other mixture is as good
            np.testing.assert_allclose(weights, bound.importance, atol=2e-2)


def trust_of(gains: list[float], threshold: float = 2.0, decay: float = 0.95) -> float:
    evidence = Evidence(decay, threshold)
    evidence.start()
    for gain in gains:
        evidence.take(gain)
    return evidence.trust


class TestEvidence:
    def test_by_hand(self) -> None:
        # Decay ½, gains 1, 1, 1, 3: weights 1, 2, 4, 8 over 15: mean 31/15, squares (7 + 72)/15; number of values
        # (15² / (1 + 4 + 16 + 64)) = 225/85. Error² = (79/15 − (31/15)²) / (225/85 − 1).
        error = (79 / 15 - (31 / 15) ** 2) / (225 / 85 - 1)
        assert trust_of([1, 1, 1, 3], 0.5, 0.5) == pytest.approx(1 - 0.25 * error / (31 / 15) ** 2)

    def test_little_is_believed(self) -> None:
        assert trust_of([1.0] * (LEAST_MEASUREMENTS - 1)) == 0.0
        assert trust_of([1.0] * LEAST_MEASUREMENTS) == pytest.approx(1.0)
        assert trust_of([-1.0] * 20) == trust_of([0.0] * 20) == trust_of([np.nan, np.inf, -np.inf] * 5) == 0.0
        assert 0.0 <= trust_of([1e300, -1e300, 1.0, 2.0, 1e-300]) <= 1.0
        assert trust_of([], threshold=0.0) == 1.0

    def test_gains_of_pure_noise_are_seldom_believed(self) -> None:
        random = np.random.default_rng(0)
        trusts = [trust_of(list(random.normal(size=30))) for _ in range(800)]
        # Student's t with some 24 degrees of freedom is above 2 in 2.8 % (± 0.6 % of 800), and seldom by much.
        assert np.mean(np.array(trusts) > 0) == pytest.approx(0.028, abs=0.015)
        assert np.mean(trusts) < 0.02
