from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies import RegularizedBalance
from mixer.policies.regularized_balance import balanced
from tests.mixer.policies.observed import led, measured, weights_of

NAN, seeds = float("nan"), st.integers(0, 10_000)
LESS, MORE = 1 / (1 + np.exp(0.4)), 1 / (1 + np.exp(-0.4))  # scores of 1.2 and 1.6


def drawn(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    factor = random.normal(size=(size, 4))
    return factor @ factor.T, random.dirichlet(np.ones(size))


class TestProgramme:
    def test_by_hand(self) -> None:
        # Gp = ½ (6, 8) = (3, 4), of norm 5: λ = 2 gives scores 1.2 and 1.6.
        found = balanced(np.array([[4.0, 2], [2, 6]]), np.array([0.5, 0.5]), 2.0)
        np.testing.assert_allclose(found, [LESS, MORE])

    @given(seed=seeds, size=st.integers(1, 7), scale=st.sampled_from([1e-300, 1e-5, 1e8, 1e300]))
    def test_kkt_in_any_unit(self, seed: int, size: int, scale: float) -> None:
        """All weights are positive, so that all have one slope: `(Gp)_k − (‖Gp‖/λ)(log w_k + 1)`."""
        gram, importance = drawn(seed, size)
        weights = balanced(gram, importance, 2.0)
        assert weights.sum() == pytest.approx(1.0)
        products = gram @ importance
        assert np.ptp(products / np.linalg.norm(products) - (np.log(weights) + 1) / 2.0) < 1e-9
        np.testing.assert_allclose(balanced(scale * gram, importance, 2.0), weights, rtol=1e-6)

    def test_its_ends(self) -> None:
        gram, importance = drawn(1, 4)
        np.testing.assert_allclose(balanced(gram, importance, 0.0), 0.25)
        assert balanced(gram, importance, 300.0).argmax() == (gram @ importance).argmax()
        assert balanced(np.zeros((2, 2)), np.array([0.5, 0.5]), 3.0) is None


class TestPolicy:
    def test_weights_are_overwritten_not_multiplied(self) -> None:
        # The noise in the diagonal is left out.
        course = [measured([4, 6], [0, 0], [30, 30], [[9, 2], [2, 9]])] * 3
        for decision in led(RegularizedBalance(None, 1, 2.0, decay=0.0), course)[1:]:
            np.testing.assert_allclose(decision.weights, [LESS, MORE])

    @pytest.mark.parametrize(
        ("arguments", "seen", "own", "expected"),
        [
            # G (1, 0) = (4, 3), over 5.
            ({"targets": ["a"], "strength": 2.0}, ([4, 9], [0, 0], [30, 30], [[4, 3], [3, 9]]), (0.5, 0.5), MORE),
            # The own weights are what is evaluated: Gp = (4, 3).
            ({"strength": 2.0, "min_samples": 0}, ([16, 4], [0, 0], [15, 45]), (0.25, 0.75), MORE),
            # Without a target that is there the weights hold.
            ({"targets": ["b"]}, ([4, NAN], [1, NAN], [60, 1]), (0.4, 0.6), 0.4),
            # Least samples.
            ({"strength": 300.0}, ([4, 1], [0, 0], [20, 20]), (0.5, 0.5), 38 / 40),
        ],
    )
    def test_by_hand(self, arguments: dict[str, Any], seen: Any, own: Any, expected: float) -> None:
        weights = weights_of(RegularizedBalance(interval_steps=1, **arguments), measured(*seen), own=own)
        np.testing.assert_allclose(weights, [expected, 1 - expected])
