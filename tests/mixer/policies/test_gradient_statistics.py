from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.measurements.gradients import GradientStatistics, alignment_of, conflict_of, signal_and_noise

NAN = np.nan
awkward = st.one_of(st.floats(-10.0, 10.0), st.sampled_from([NAN, np.inf, -np.inf, 0.0, 1e300, -1e300, 5e-324]))
vectors = st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=4)


def statistics(gram: Any, **changes: Any) -> GradientStatistics:
    size, nothing = len(gram), np.full(len(gram), NAN)
    counts, shares = np.full(size, 4), np.full(size, 1 / size)
    whole = GradientStatistics(np.array(gram, float), nothing, nothing, counts, shares, np.zeros((size, size)))
    return replace(whole, **{name: np.array(value) for name, value in changes.items()})


def parts(gradients: np.ndarray, sizes: list[int]) -> Any:
    """Signal and noise of samples `[..., num_samples, dimension]` in groups of these sizes."""
    groups = [group.sum(axis=-2) for group in np.split(gradients, np.cumsum(sizes)[:-1], axis=-2)]
    total = np.sum(groups, axis=0)
    squares = sum((group**2).sum(axis=-1) for group in groups)
    return signal_and_noise((total**2).sum(axis=-1), squares, sum(sizes), sum(size**2 for size in sizes))


class TestSignalAndNoise:
    def test_by_hand_each_stream_by_itself(self) -> None:
        # Groups of 1 and 2 samples with sums (2, 0) and (2, 2): ||total||² = 16 + 4 = 20, squares 4 + 8 = 12, n = 3,
        # Σ s² = 5. Signal (20 − 12)/(9 − 5) = 2; noise 20/3 − 2·3 = 2/3. One group tells nothing.
        signal, noise = signal_and_noise(*(np.array(pair) for pair in ([20.0, 4], [12.0, 4], [3.0, 2], [5.0, 4])))
        np.testing.assert_allclose(signal, [2.0, NAN])
        np.testing.assert_allclose(noise, [2 / 3, NAN])

    @pytest.mark.parametrize("sizes", [[1, 1], [1, 1, 1, 1, 1], [3, 1, 2], [1, 7]], ids=str)
    def test_is_unbiased_for_groups_of_any_sizes(self, sizes: list[int]) -> None:
        gradient, deviation = np.array([1.0, -2.0, 0.5]), np.array([1.0, 0.5, 2.0])
        drawn = np.random.default_rng(0).normal(size=(20_000, sum(sizes), 3))
        for estimates in parts(gradient + deviation * drawn, sizes):  # 1 + 4 + 0.25 and 1 + 0.25 + 4
            assert abs(estimates.mean() - 5.25) < 4 * estimates.std() / np.sqrt(len(estimates))

    @given(st.lists(st.floats(-100, 100), min_size=3, max_size=12), st.integers(1, 2), st.floats(0.1, 10))
    def test_is_of_second_order_and_what_it_parts_adds_up(self, samples: list[float], cut: int, scale: float) -> None:
        gradients, sizes = np.array(samples)[:, None], [cut, len(samples) - cut]
        signal, noise = parts(gradients, sizes)
        np.testing.assert_allclose(parts(scale * gradients, sizes), scale**2 * np.array([signal, noise]), atol=1e-6)
        # ||mean||² = signal + noise / n, whatever the groups.
        assert signal + noise / len(samples) == pytest.approx(float(gradients.mean() ** 2), abs=1e-6)


def test_cosines_by_hand() -> None:
    # Gradients (3, 4) and (4, 3): norms 5, product 24.
    np.testing.assert_allclose(statistics([[25, 24], [24, 25]]).cosines, [[1, 0.96], [0.96, 1]])
    without = statistics([[4, 0, NAN], [0, 0, NAN], [NAN, NAN, NAN]]).cosines
    np.testing.assert_array_equal(without.ravel(), [1.0, *[NAN] * 8])


class TestNoise:
    @pytest.mark.parametrize(
        ("gram", "variance", "counts", "expected"),
        [
            # g = 0.75·g_1 + 0.25·g_2: 9/16·4 + 2·3/16·1 + 1/16·9 = (36 + 6 + 9)/16 = 3.1875. Noise of the batch
            # 9/16·8/6 + 1/16·4/2 = 0.75 + 0.125 = 0.875, of one of its 8 samples 7.
            ([[4, 1], [1, 9]], [8, 4], [6, 2], (3.1875 - 0.875, 7.0)),
            # Streams that are not there do not count.
            ([[4, NAN], [NAN, NAN]], [8, NAN], [4, 0], (2.0, 8.0)),
        ],
    )
    def test_by_hand(self, gram: Any, variance: Any, counts: list[int], expected: Any) -> None:
        shares = np.array(counts) / sum(counts)
        found = statistics(gram, variance=np.array(variance, float), counts=counts, shares=shares)
        assert found.noise == pytest.approx(expected)

    def test_a_stream_of_a_single_sample_is_as_noisy_as_the_others(self) -> None:
        # (0.5·8 + 0.25·2)/0.75 = 6; noise of the batch 1/4·8/4 + 1/16·2/2 + 1/16·6/1 = 0.5 + 0.0625 + 0.375.
        whole = statistics(4 * np.eye(3), variance=[8, 2, NAN], counts=[4, 2, 1], shares=[0.5, 0.25, 0.25])
        assert whole.noise == pytest.approx((1.5 - 0.9375, 7 * 0.9375))

    def test_of_a_gradient_that_is_not_finite_or_a_variance_that_was_not_measured_there_is_none(self) -> None:
        assert np.isnan(statistics([[4, np.inf], [np.inf, 9]], variance=np.ones(2)).noise).all()
        assert np.isnan(statistics([[4, 1], [1, 9]]).noise).all()


class TestConflictAndAlignment:
    def test_by_hand(self) -> None:
        # Squared norms 4, 9, 1. Worst conflict −<g_1, g_3>/(4 + 1) = 1.5/5 = 0.3 (against 2/(9 + 1) = 0.2); largest
        # cosine 3/(2·3) = 0.5.
        whole = np.array([[4.5, 3, -1.5], [3, 9.5, -2], [-1.5, -2, 1.5]]), np.array([4.0, 9.0, 1.0])
        assert conflict_of(*whole) == pytest.approx(0.3)
        assert alignment_of(*whole) == pytest.approx(0.5)

    def test_one_stream_and_a_pair_without_gradient_neither_conflict_nor_align(self) -> None:
        assert conflict_of(np.array([[4.0]]), np.ones(1)) == alignment_of(np.array([[4.0]]), np.ones(1)) == 0.0
        assert conflict_of(np.array([[0, -1], [-1, 0]]), np.array([-3.0, 0.0])) == 0.0
        assert alignment_of(np.array([[0, 1], [1, 0]]), np.array([-3.0, 4.0])) == 0.0

    @given(gradients=vectors.filter(lambda rows: len(rows) > 1))
    def test_they_are_the_least_that_hold(self, gradients: list[list[float]]) -> None:
        g = np.array(gradients)
        gram, pairs = g @ g.T, ~np.eye(len(g), dtype=bool)
        norm = np.diagonal(gram)
        c, aligned = conflict_of(gram, norm), alignment_of(gram, norm)
        bound, sizes = (norm[:, None] + norm)[pairs], np.sqrt(np.outer(norm, norm))[pairs]
        assert (gram[pairs] + c * bound >= -1e-9).all()
        assert (gram[pairs] <= aligned * sizes + 1e-9).all()
        assert c == 0.0 or (gram[pairs] + 0.99 * c * bound <= 0.0).any()

    @given(rows=st.lists(st.lists(awkward, min_size=3, max_size=3), min_size=4, max_size=4))
    def test_they_stay_in_range_whatever_was_measured(self, rows: list[list[float]]) -> None:
        whole = statistics(rows[:3], squared_norm=rows[3])
        assert 0.0 <= conflict_of(whole.gram, whole.squared_norm) <= 0.5
        assert 0.0 <= alignment_of(whole.gram, whole.squared_norm) <= 1.0


def test_a_part_has_the_numbers_of_its_streams() -> None:
    numbers = np.arange(9.0).reshape(3, 3)
    own: dict[str, Any] = {"variance": [1.0, 2.0, 3.0], "squared_norm": [4.0, 5.0, 6.0], "counts": [7, 8, 9]}
    whole = statistics(numbers, **own, shares=[0.1, 0.6, 0.3], gram_error=-numbers)
    expected = [[[8, 6], [2, 0]], [3, 1], [6, 4], [9, 7], [0.75, 0.25], [[-8, -6], [-2, 0]]]
    for found, values in zip(vars(whole.part([2, 0])).values(), expected, strict=True):
        np.testing.assert_allclose(found, values)
    assert replace(whole, shares=np.array([0.0, 1.0, 0.0])).part([0, 2]).shares.tolist() == [0.0, 0.0]
