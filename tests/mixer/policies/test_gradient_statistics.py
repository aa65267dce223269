from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies.gradient_statistics import GradientStatistics, alignment_of, conflict_of, signal_and_noise

awkward = st.one_of(st.floats(-10.0, 10.0), st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e300, -1e300, 5e-324]))


def statistics(gram: list[list[float]], **changes: object) -> GradientStatistics:
    num_streams = len(gram)
    nothing = np.full(num_streams, np.nan)
    counts, shares = np.full(num_streams, 4), np.full(num_streams, 1 / num_streams)
    whole = GradientStatistics(
        np.array(gram, dtype=float), nothing, nothing, counts, shares, np.zeros((num_streams, num_streams))
    )
    return replace(whole, **changes)


def parts(gradients: np.ndarray, sizes: list[int]) -> tuple[float, float]:
    """Signal and noise of samples `[num_samples, dimension]` in groups of these sizes."""
    groups = [group.sum(axis=0) for group in np.split(gradients, np.cumsum(sizes)[:-1])]
    total = np.sum(groups, axis=0)
    squares = [float(group @ group) for group in groups]
    return signal_and_noise(float(total @ total), sum(squares), sum(sizes), sum(size**2 for size in sizes))


class TestSignalAndNoise:
    def test_by_hand(self) -> None:
        # Groups of 1 and 2 samples with sums (2, 0) and (2, 2): ||total||² = 16 + 4 = 20, squares 4 + 8 = 12, n = 3,
        # Σ s² = 5. Signal (20 − 12)/(9 − 5) = 2; noise 20/3 − 2·3 = 2/3.
        signal, noise = signal_and_noise(20.0, 12.0, 3, 5)
        assert signal == pytest.approx(2.0)
        assert noise == pytest.approx(2 / 3)

    @pytest.mark.parametrize("sizes", [[1, 1], [1, 1, 1, 1, 1], [3, 1, 2], [1, 7]], ids=str)
    def test_is_unbiased_for_groups_of_any_sizes(self, sizes: list[int]) -> None:
        random = np.random.default_rng(0)
        gradient, deviation = np.array([1.0, -2.0, 0.5]), np.array([1.0, 0.5, 2.0])
        estimates = np.array(
            [parts(gradient + deviation * random.normal(size=(sum(sizes), 3)), sizes) for _ in range(20_000)]
        )
        errors = 4 * estimates.std(axis=0) / np.sqrt(len(estimates))
        assert abs(estimates[:, 0].mean() - 5.25) < errors[0]  # 1 + 4 + 0.25
        assert abs(estimates[:, 1].mean() - 5.25) < errors[1]  # 1 + 0.25 + 4

    @pytest.mark.parametrize("sizes", [[1], [5]], ids=str)
    def test_one_group_tells_nothing(self, sizes: list[int]) -> None:
        assert np.isnan(parts(np.ones((sum(sizes), 2)), sizes)).all()

    @given(
        samples=st.lists(st.floats(-100, 100), min_size=3, max_size=12), cut=st.integers(1, 2), scale=st.floats(0.1, 10)
    )
    def test_is_of_second_order_and_what_it_parts_adds_up(self, samples: list[float], cut: int, scale: float) -> None:
        gradients = np.array(samples)[:, None]
        sizes = [cut, len(samples) - cut]
        signal, noise = parts(gradients, sizes)
        np.testing.assert_allclose(parts(scale * gradients, sizes), scale**2 * np.array([signal, noise]), atol=1e-6)
        # ||mean||² = signal + noise / n, whatever the groups.
        assert signal + noise / len(samples) == pytest.approx(float(gradients.mean() ** 2), abs=1e-6)

    @given(samples=st.lists(st.floats(-10, 10), min_size=2, max_size=8))
    def test_groups_of_one_are_the_sample_variance(self, samples: list[float]) -> None:
        signal, noise = parts(np.array(samples)[:, None], [1] * len(samples))
        assert noise == pytest.approx(np.var(samples, ddof=1), abs=1e-8)
        pairs = [a * b for i, a in enumerate(samples) for j, b in enumerate(samples) if i != j]
        assert signal == pytest.approx(np.mean(pairs), abs=1e-8)

    def test_streams_are_parted_each_by_itself(self) -> None:
        signal, noise = signal_and_noise(
            np.array([20.0, 4.0]), np.array([12.0, 4.0]), np.array([3.0, 2.0]), np.array([5.0, 4.0])
        )
        np.testing.assert_allclose(signal, [2.0, np.nan])
        np.testing.assert_allclose(noise, [2 / 3, np.nan])


class TestCosines:
    def test_by_hand(self) -> None:
        # Gradients (3, 4) and (4, 3): norms 5, product 24.
        np.testing.assert_allclose(statistics([[25, 24], [24, 25]]).cosines, [[1, 0.96], [0.96, 1]])

    def test_a_stream_without_gradient_has_none(self) -> None:
        cosines = statistics([[4, 0, np.nan], [0, 0, np.nan], [np.nan, np.nan, np.nan]]).cosines
        assert cosines[0, 0] == 1.0
        assert np.isnan(cosines.ravel()[1:]).all()

    @given(gradients=st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=4))
    def test_they_are_cosines(self, gradients: list[list[float]]) -> None:
        g = np.array(gradients)
        cosines = statistics((g @ g.T).tolist()).cosines
        known = cosines[np.isfinite(cosines)]
        assert (np.abs(known) <= 1 + 1e-6).all()


class TestNoise:
    def test_by_hand(self) -> None:
        # g = 0.75·g_1 + 0.25·g_2: 9/16·4 + 2·3/16·1 + 1/16·9 = (36 + 6 + 9)/16 = 3.1875. Noise of the batch
        # 9/16·8/6 + 1/16·4/2 = 0.75 + 0.125 = 0.875, of one of its 8 samples 7.
        whole = statistics(
            [[4, 1], [1, 9]],
            variance=np.array([8.0, 4.0]),
            counts=np.array([6, 2]),
            shares=np.array([0.75, 0.25]),
        )
        assert whole.noise == pytest.approx((3.1875 - 0.875, 7.0))

    def test_streams_that_are_not_there_do_not_count(self) -> None:
        nan = np.nan
        whole = statistics(
            [[4, nan], [nan, nan]],
            variance=np.array([8.0, nan]),
            counts=np.array([4, 0]),
            shares=np.array([1.0, 0.0]),
        )
        assert whole.noise == pytest.approx((2.0, 8.0))

    def test_a_stream_of_a_single_sample_is_as_noisy_as_the_others(self) -> None:
        # (0.5·8 + 0.25·2)/0.75 = 6; noise of the batch 1/4·8/4 + 1/16·2/2 + 1/16·6/1 = 0.5 + 0.0625 + 0.375.
        whole = statistics(
            [[4, 0, 0], [0, 4, 0], [0, 0, 4]],
            variance=np.array([8.0, 2.0, np.nan]),
            counts=np.array([4, 2, 1]),
            shares=np.array([0.5, 0.25, 0.25]),
        )
        assert whole.noise == pytest.approx((1.5 - 0.9375, 7 * 0.9375))

    def test_a_gradient_that_is_not_finite_has_none(self) -> None:
        assert np.isnan(statistics([[4, np.inf], [np.inf, 9]], variance=np.ones(2)).noise).all()

    def test_an_unmeasured_variance_is_none(self) -> None:
        assert np.isnan(statistics([[4, 1], [1, 9]]).noise).all()

    def test_one_stream_is_parted_without_bias(self) -> None:
        random = np.random.default_rng(0)
        found = []
        for _ in range(5000):
            gradients = np.array([1.0, 2.0]) + random.normal(size=(4, 2))
            mean = gradients.mean(axis=0)
            _, variance = parts(gradients, [1, 1, 1, 1])
            found.append(statistics([[mean @ mean]], variance=np.array([variance])).noise)
        np.testing.assert_allclose(np.mean(found, axis=0), [5.0, 2.0], atol=0.1)


class TestConflictAndAlignment:
    def test_by_hand(self) -> None:
        # Squared norms 4, 9, 1. Worst conflict −<g_1, g_3>/(4 + 1) = 1.5/5 = 0.3 (against 2/(9 + 1) = 0.2); largest
        # cosine 3/(2·3) = 0.5.
        gram = [[4.5, 3, -1.5], [3, 9.5, -2], [-1.5, -2, 1.5]]
        whole = statistics(gram, squared_norm=np.array([4.0, 9.0, 1.0]))
        assert whole.conflict == pytest.approx(0.3)
        assert whole.alignment == pytest.approx(0.5)

    def test_without_a_variance_the_norms_of_the_batch_count(self) -> None:
        assert statistics([[4, -1], [-1, 1]]).conflict == pytest.approx(0.2)
        assert statistics([[4, 1], [1, 1]]).alignment == pytest.approx(0.5)

    def test_one_stream_neither_conflicts_nor_aligns(self) -> None:
        assert statistics([[4.0]]).conflict == statistics([[4.0]]).alignment == 0.0

    def test_a_pair_without_gradient_does_not_count(self) -> None:
        assert conflict_of(np.array([[0, -1], [-1, 0]]), np.array([-3.0, 0.0])) == 0.0
        assert alignment_of(np.array([[0, 1], [1, 0]]), np.array([-3.0, 4.0])) == 0.0

    @given(gradients=st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=2, max_size=4))
    def test_they_are_the_least_that_hold(self, gradients: list[list[float]]) -> None:
        g = np.array(gradients)
        gram = g @ g.T
        norm = np.diagonal(gram)
        c, aligned = conflict_of(gram, norm), alignment_of(gram, norm)
        pairs = ~np.eye(len(g), dtype=bool)
        bound, sizes = (norm[:, None] + norm)[pairs], np.sqrt(np.outer(norm, norm))[pairs]
        assert (gram[pairs] + c * bound >= -1e-9).all()
        assert (gram[pairs] <= aligned * sizes + 1e-9).all()
        if c > 0.0:
            assert (gram[pairs] + 0.99 * c * bound <= 0.0).any()

    @given(
        gram=st.lists(st.lists(awkward, min_size=3, max_size=3), min_size=3, max_size=3),
        norms=st.lists(awkward, min_size=3, max_size=3),
    )
    def test_they_stay_in_range_whatever_was_measured(self, gram: list[list[float]], norms: list[float]) -> None:
        whole = statistics(gram, squared_norm=np.array(norms))
        assert 0.0 <= whole.conflict <= 0.5
        assert 0.0 <= whole.alignment <= 1.0


class TestPart:
    WHOLE = GradientStatistics(
        gram=np.arange(9.0).reshape(3, 3),
        variance=np.array([1.0, 2.0, 3.0]),
        squared_norm=np.array([4.0, 5.0, 6.0]),
        counts=np.array([7, 8, 9]),
        shares=np.array([0.1, 0.6, 0.3]),
        gram_error=-np.arange(9.0).reshape(3, 3),
    )

    def test_has_the_numbers_of_its_streams(self) -> None:
        part = self.WHOLE.part([2, 0])
        assert part.gram.tolist() == [[8.0, 6.0], [2.0, 0.0]]
        assert part.gram_error.tolist() == [[-8.0, -6.0], [-2.0, 0.0]]
        assert part.variance.tolist() == [3.0, 1.0]
        assert part.squared_norm.tolist() == [6.0, 4.0]
        assert part.counts.tolist() == [9, 7]
        np.testing.assert_allclose(part.shares, [0.75, 0.25])

    def test_all_streams_are_the_whole(self) -> None:
        part = self.WHOLE.part([0, 1, 2])
        for name, values in vars(self.WHOLE).items():
            np.testing.assert_allclose(getattr(part, name), values, err_msg=name)

    def test_streams_without_samples_have_no_shares(self) -> None:
        part = replace(self.WHOLE, shares=np.array([0.0, 1.0, 0.0])).part([0, 2])
        assert part.shares.tolist() == [0.0, 0.0]

    def test_keeps_signal_and_noise_of_its_own(self) -> None:
        alone = GradientStatistics(
            gram=np.array([[8.0]]),
            variance=np.array([3.0]),
            squared_norm=np.array([6.0]),
            counts=np.array([9]),
            shares=np.array([1.0]),
            gram_error=np.array([[-8.0]]),
        )
        assert self.WHOLE.part([2]).noise == alone.noise
