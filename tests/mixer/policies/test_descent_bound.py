from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.measurements.gradients import alignment_of, conflict_of
from mixer.policies.shared.descent_bound import best_weights, bound_factors, minimise_on_simplex
from mixer.policies.shared.shares import at_least

pairs = st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 10)), min_size=1, max_size=6)
shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6).filter(lambda values: sum(values) > 1e-3)


class TestMinimum:
    @pytest.mark.parametrize(
        ("linear", "quadratic", "expected"),
        [
            # Level ν with (ν + 4)/4 + (ν + 1)/1 = 1: 1.25 ν = −1, ν = −0.8.
            ([-4, -1], [4, 1], [0.8, 0.2]),
            # Both have the level: (ν + 1) + (ν + 1) + (ν − 9) = 1 gives ν = 8/3 < 9, so the third has no weight.
            ([-1, -1, 9], [1, 1, 1], [0.5, 0.5, 0]),
            # A straight line: the first stream takes (−1 + 3)/4 = 0.5 up to its level −1, the line the rest.
            ([-3, -1], [4, 0], [0.5, 0.5]),
            ([-3, -1, -1], [4, 0, 0], [0.5, 0.25, 0.25]),
            ([1, 2], [0, 0], [1, 0]),
            ([0, 0], [0, 0], [0.5, 0.5]),
            ([7], [3], [1]),
        ],
    )
    def test_by_hand(self, linear: list[float], quadratic: list[float], expected: list[float]) -> None:
        found = minimise_on_simplex(np.array(linear, dtype=float), np.array(quadratic, dtype=float))
        np.testing.assert_allclose(found, expected, atol=1e-8)

    @given(pairs=pairs)
    def test_streams_with_a_weight_stand_at_one_level_and_the_others_above(self, pairs: Any) -> None:
        linear, quadratic = np.array(pairs).T
        best = minimise_on_simplex(linear, quadratic)
        assert best.min() >= 0.0
        assert best.sum() == pytest.approx(1.0)
        slopes = linear + quadratic * best
        levels = slopes[best > 1e-6]
        assert np.ptp(levels) < 1e-6
        assert (slopes >= levels.min() - 1e-6).all()

    def test_the_equation_term_by_term(self) -> None:
        # b = 10, ηL = 0.5, β = 0.8, γ = 1.5: λ = −0.8·(4, 1) + 0.5/20·(40, 8) = (−2.2, −0.6),
        # κ = 0.5·1.5·(4, 1) = (3, 0.75). Level: (ν + 2.2)/3 + (ν + 0.6)/0.75 = 1, so ν (1/3 + 4/3) = 1 − 2.2/3 − 0.8.
        level = (1 - 2.2 / 3 - 0.8) * 3 / 5
        found = best_weights(np.array([4.0, 1.0]), np.array([40.0, 8.0]), 10, 0.5, 0.8, 1.5)
        np.testing.assert_allclose(found, [(level + 2.2) / 3, (level + 0.6) / 0.75])


class TestBoundFactors:
    def test_by_hand(self) -> None:
        # K = 3, b = 12, least b_k = 2: β = 1 + 0.05·(−3 + 2 − 6) = 0.65, or 1 − 0.05·1; γ = 1 + 0.5·2 = 2.
        counts = np.array([6, 4, 2])
        assert bound_factors(0.05, 0.5, counts, "published") == pytest.approx((0.65, 2.0))
        assert bound_factors(0.05, 0.5, counts, "per_stream") == pytest.approx((0.95, 2.0))
        # A stream that was not there does not count, the signal is never turned round, a single one has no others.
        assert bound_factors(0.05, 0.5, np.array([6, 6, 0]), "published") == pytest.approx((1 - 0.05 * 3, 2.0))
        assert bound_factors(0.5, 0.0, np.ones(9), "per_stream") == (0.0, 1.0)
        assert bound_factors(0.5, 1.0, np.array([6]), "published") == (1.0, 1.0)

    @given(seed=st.integers(0, 200), num_streams=st.integers(2, 6))
    def test_both_bound_the_descent_and_per_stream_is_the_closer(self, seed: int, num_streams: int) -> None:
        random = np.random.default_rng(seed)
        gradients = random.normal(size=(num_streams, 4)) + 0.5
        weights = random.dirichlet(np.ones(num_streams))
        gram = gradients @ gradients.T
        norms = np.diagonal(gram)
        conflict, alignment = conflict_of(gram, norms), alignment_of(gram, norms)
        descent = weights @ gram.sum(axis=1)  # of the sum of the losses, along the gradient of the mixture
        per_stream = (1 - conflict * (num_streams - 2)) * (weights @ norms) - conflict * norms.sum()
        published = (1 + conflict * (2 - num_streams - 1 / weights.min())) * (weights @ norms)
        assert published <= per_stream + 1e-9 <= descent + 2e-9
        _, gamma = bound_factors(conflict, alignment, np.ones(num_streams), "per_stream")
        assert weights @ gram @ weights <= gamma * (weights**2 @ norms) + 1e-9


class TestAtLeast:
    def test_by_hand(self) -> None:
        # 0.1 for the last leaves 0.9 for the others' 0.96: 0.64 and 0.32 become 0.6 and 0.3.
        np.testing.assert_allclose(at_least(np.array([0.64, 0.32, 0.04]), 0.1), [0.6, 0.3, 0.1])
        # 0.2 for the last leaves 0.8/0.99 of 0.21, which is below 0.2: both get it.
        np.testing.assert_allclose(at_least(np.array([0.78, 0.21, 0.01]), 0.2), [0.6, 0.2, 0.2])
        weights = np.array([0.3, 0.7])
        assert at_least(weights, 0.3) is weights

    @given(weights=shares, least=st.floats(0.0, 1.0))
    def test_nobody_is_below_and_the_rest_keeps_its_order(self, weights: list[float], least: float) -> None:
        before = np.array(weights) / np.sum(weights)
        after = at_least(before, least)
        assert after.sum() == pytest.approx(1.0)
        assert after.min() >= min(least, 1 / len(before)) - 1e-12
        order = np.argsort(before, kind="stable")
        assert (np.diff(after[order]) >= -1e-12).all()
        np.testing.assert_allclose(at_least(after, least), after, atol=1e-12)
