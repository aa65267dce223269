import doctest
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mixer.mixture.apportion
from mixer.mixture.apportion import apportion

TOLERANCE = 1e-6
HARD_WEIGHTS = (4937, 1432, 189, 23)

weight_lists = st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12)
totals = st.lists(st.integers(1, 300), min_size=1, max_size=120)


def tijdeman(num_streams: int) -> float:
    return 1.0 - 1.0 / (2 * num_streams - 2) if num_streams > 1 else 0.0


def normalised(weights: Iterable[float]) -> np.ndarray:
    array = np.array(list(weights), dtype=np.float64)
    return array / array.sum()


def constant_run(weights: Iterable[float], batch_sizes: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Gives how far each stream is behind its exact share after every step, and the counts."""
    shares, deficit, counts_of_steps = normalised(weights), None, []
    for total in batch_sizes:
        counts, deficit = apportion(shares, total, np.zeros(len(shares)) if deficit is None else deficit)
        counts_of_steps.append(counts)
    counts = np.array(counts_of_steps)
    owed = np.cumsum(list(batch_sizes))[:, None] * shares
    return owed - np.cumsum(counts, axis=0), counts


def varying_run(next_shares: Callable[[int, np.ndarray], np.ndarray], batch_sizes: Iterable[int]) -> np.ndarray:
    """Gives how far each stream is behind the sum of its shares after every step."""
    behind: np.ndarray | None = None
    deficit, behind_of_steps = None, []
    for step, total in enumerate(batch_sizes):
        if behind is None:
            behind = np.zeros(len(next_shares(0, np.zeros(0))))
            deficit = behind.copy()
        shares = next_shares(step, behind)
        counts, deficit = apportion(shares, total, deficit)
        behind = behind + shares * total - counts
        behind_of_steps.append(behind)
    return np.array(behind_of_steps)


def assert_within_varying_bound(behind: np.ndarray) -> None:
    assert behind.min() >= -1.0 - TOLERANCE
    assert behind.max() <= 1.0 + np.log(behind.shape[1]) + TOLERANCE


def one_by_one(shares: np.ndarray, total: int, deficit: np.ndarray) -> np.ndarray:
    """Too many are due: samples are taken away singly, always from the stream furthest ahead."""
    owed = deficit + shares * total
    slack = tijdeman(len(shares)) if len(shares) > 1 else 0.5
    counts = np.maximum(np.ceil(owed - slack - 1e-9), 0.0)
    while counts.sum() > total:
        served = np.flatnonzero(counts)
        counts[served[np.argmin((owed - counts)[served])]] -= 1.0
    return counts.astype(np.int64)


class TestTooManyDue:
    @given(
        seed=st.integers(0, 10**6),
        num_streams=st.integers(2, 60),
        share_due=st.floats(0.3, 1.0),
        most_due=st.sampled_from([1.0, 3.5, 40.0]),
        is_coarse=st.booleans(),
    )
    def test_as_many_wait_as_if_samples_were_taken_away_singly(
        self, seed: int, num_streams: int, share_due: float, most_due: float, is_coarse: bool
    ) -> None:
        random = np.random.default_rng(seed)
        deficit = random.uniform(0.5, most_due, num_streams) * (random.random(num_streams) < share_due)
        deficit = np.round(deficit * 4) / 4 if is_coarse else deficit  # ties, too
        deficit -= deficit.sum() / num_streams
        shares = normalised(random.dirichlet(np.ones(num_streams)) + 1e-9)
        for total in (1, 2, num_streams // 4 + 1):
            counts, left = apportion(shares, total, deficit)
            if (expected := one_by_one(shares, total, deficit)).sum() == total:
                assert counts.tolist() == expected.tolist()
            assert counts.sum() == total
            np.testing.assert_allclose(left, deficit + shares * total - counts, atol=1e-12)

    def test_a_cup_game_of_thousands_of_streams_keeps_the_bound(self) -> None:
        num_streams, total, deficit, alive = 4_000, 100, np.zeros(4_000), np.arange(4_000)
        for _ in range(60):
            shares = np.full(num_streams, 1e-15)
            shares[alive] = 1.0
            counts, deficit = apportion(normalised(shares), total, deficit)
            assert counts.sum() == total
            alive = alive[counts[alive] == 0] if (counts[alive] == 0).sum() > total else np.arange(num_streams)
            assert deficit.max() <= 1.0 + np.log(num_streams)


class TestCounts:
    @given(weights=weight_lists, batch_sizes=totals)
    def test_they_sum_to_the_batch_and_are_never_negative(self, weights: list[float], batch_sizes: list[int]) -> None:
        _, counts = constant_run(weights, batch_sizes)
        assert counts.sum(axis=1).tolist() == batch_sizes
        assert counts.min() >= 0
        assert counts.dtype == np.int64

    @given(weights=weight_lists, total=st.integers(1, 10**9))
    def test_the_deficit_is_what_is_left_of_the_share(self, weights: list[float], total: int) -> None:
        shares = normalised(weights)
        counts, deficit = apportion(shares, total, np.zeros(len(shares)))
        np.testing.assert_allclose(deficit, shares * total - counts, atol=1e-6)

    def test_a_whole_share_is_met_exactly(self) -> None:
        counts, deficit = apportion(np.array([0.5, 0.25, 0.25]), 8, np.zeros(3))
        assert counts.tolist() == [4, 2, 2]
        assert deficit.tolist() == [0.0, 0.0, 0.0]

    def test_one_stream_gets_all(self) -> None:
        counts, deficit = apportion(np.array([1.0]), 17, np.zeros(1))
        assert (counts.tolist(), deficit.tolist()) == ([17], [0.0])

    def test_the_example_of_the_documentation_holds(self) -> None:
        assert doctest.testmod(mixer.mixture.apportion) == doctest.TestResults(failed=0, attempted=2)

    def test_an_empty_step_gives_nothing(self) -> None:
        counts, deficit = apportion(np.array([0.5, 0.3, 0.2]), 0, np.zeros(3))
        assert (counts.tolist(), deficit.tolist()) == ([0, 0, 0], [0.0, 0.0, 0.0])

    def test_arguments_are_left_as_they_are(self) -> None:
        shares, deficit = np.array([0.7, 0.3]), np.array([0.2, -0.2])
        apportion(shares, 3, deficit)
        assert (shares.tolist(), deficit.tolist()) == ([0.7, 0.3], [0.2, -0.2])

    @given(weights=weight_lists, batch_sizes=totals)
    def test_the_same_run_gives_the_same_counts(self, weights: list[float], batch_sizes: list[int]) -> None:
        assert np.array_equal(constant_run(weights, batch_sizes)[1], constant_run(weights, batch_sizes)[1])


class TestConstantWeights:
    def test_the_weights_that_break_largest_remainder(self) -> None:
        behind, _ = constant_run(HARD_WEIGHTS, [1] * 5_000)
        assert np.abs(behind).max() <= tijdeman(4) + TOLERANCE

    @pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 8, 32, 1_000])
    @pytest.mark.parametrize(
        "weights", [HARD_WEIGHTS, [1, 1], [1, 2, 3], [1] * 7, [1000, 1], [0.1, 0.2, 0.7], [2.0**-k for k in range(12)]]
    )
    def test_every_prefix_is_within_the_bound_of_tijdeman(self, weights: list[float], batch_size: int) -> None:
        behind, _ = constant_run(weights, [batch_size] * 600)
        assert np.abs(behind).max() <= tijdeman(len(weights)) + TOLERANCE

    @given(weights=weight_lists, batch_size=st.integers(1, 64))
    def test_any_weights_stay_within_the_bound(self, weights: list[float], batch_size: int) -> None:
        behind, _ = constant_run(weights, [batch_size] * 300)
        assert np.abs(behind).max() <= tijdeman(len(weights)) + TOLERANCE

    @given(weights=weight_lists, batch_sizes=totals)
    def test_batches_of_any_sizes_stay_within_the_bound(self, weights: list[float], batch_sizes: list[int]) -> None:
        behind, _ = constant_run(weights, batch_sizes)
        assert np.abs(behind).max() <= tijdeman(len(weights)) + TOLERANCE

    @given(counts=st.lists(st.integers(1, 40), min_size=2, max_size=8))
    def test_after_a_whole_period_every_stream_has_its_share_exactly(self, counts: list[int]) -> None:
        behind, drawn = constant_run(counts, [1] * sum(counts))
        assert drawn.sum(axis=0).tolist() == counts
        assert np.abs(behind[-1]).max() < TOLERANCE

    def test_a_stream_of_one_in_ten_comes_once_in_ten(self) -> None:
        _, counts = constant_run([9, 1], [1] * 1_000)
        assert counts[:, 1].reshape(100, 10).sum(axis=1).tolist() == [1] * 100

    def test_rounding_does_not_pile_up(self) -> None:
        behind, _ = constant_run([1 / 3, 1 / 7, 1 / 11, 1 / 13], [10**6 + 3] * 2_000)
        assert np.abs(behind).max() <= tijdeman(4) + 1e-3


class TestVaryingWeights:
    @pytest.mark.parametrize("num_streams", [2, 3, 5, 8, 20, 50])
    @pytest.mark.parametrize("concentration", [0.05, 1.0])
    def test_new_random_weights_each_step(self, num_streams: int, concentration: float) -> None:
        random = np.random.default_rng(num_streams)
        shares = random.dirichlet(np.full(num_streams, concentration), size=1_500) + 1e-12
        shares /= shares.sum(axis=1, keepdims=True)
        assert_within_varying_bound(varying_run(lambda step, _: shares[step], [1] * 1_500))

    @pytest.mark.parametrize("num_streams", [2, 4, 16])
    def test_random_weights_and_batches_of_random_sizes(self, num_streams: int) -> None:
        random = np.random.default_rng(num_streams)
        shares = random.dirichlet(np.full(num_streams, 0.3), size=1_000) + 1e-12
        shares /= shares.sum(axis=1, keepdims=True)
        batch_sizes = random.integers(1, 40, size=1_000).tolist()
        assert_within_varying_bound(varying_run(lambda step, _: shares[step], batch_sizes))

    @pytest.mark.parametrize("block", [5, 50])
    @pytest.mark.parametrize("num_streams", [3, 4, 12])
    def test_weights_that_change_now_and_then(self, num_streams: int, block: int) -> None:
        shares = np.random.default_rng(block).dirichlet(np.full(num_streams, 0.5), size=2_000 // block)
        assert_within_varying_bound(varying_run(lambda step, _: shares[step // block], [1] * 2_000))

    @pytest.mark.parametrize("num_favoured", [1, 2, 3, 5])
    @pytest.mark.parametrize("num_streams", [5, 10, 30])
    def test_an_adversary_that_feeds_the_streams_furthest_behind(self, num_streams: int, num_favoured: int) -> None:
        def feed(_: int, behind: np.ndarray) -> np.ndarray:
            shares = np.full(num_streams, 1e-9)
            shares[np.argsort(-behind, kind="stable")[:num_favoured]] = 1.0 if len(behind) else 0.0
            return shares / shares.sum()

        assert_within_varying_bound(varying_run(feed, [1] * 1_500))

    @pytest.mark.parametrize("num_streams", [4, 10, 30, 100])
    def test_the_adversary_of_the_emptying_game(self, num_streams: int) -> None:
        """Fills the streams that were never served alike, one fewer each time."""

        def feed(step: int, behind: np.ndarray) -> np.ndarray:
            num_filled = num_streams - step % num_streams
            shares = np.full(num_streams, 1e-9)
            shares[np.argsort(-behind, kind="stable")[:num_filled]] = 1.0 if len(behind) else 0.0
            return shares / shares.sum()

        behind = varying_run(feed, [1] * (5 * num_streams))
        assert behind.max() > 1.0
        assert_within_varying_bound(behind)

    @given(
        blocks=st.lists(
            st.tuples(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=4), st.lists(st.integers(1, 9), max_size=12)),
            max_size=12,
        )
    )
    def test_any_weights_and_batches(self, blocks: list[tuple[list[float], list[int]]]) -> None:
        steps = [(normalised(weights), total) for weights, sizes in blocks for total in sizes]
        deficit = behind = np.zeros(4)
        for shares, total in steps:
            counts, deficit = apportion(shares, total, deficit)
            behind = behind + shares * total - counts
            assert counts.sum() == total
            assert_within_varying_bound(behind[None])


class TestWhoComesFirst:
    """Golden values of the rule, at the places where another comparison or another sign gives other counts."""

    def test_a_stream_may_have_a_sample_as_soon_as_its_bound_allows_it(self) -> None:
        # The first stream is behind by exactly 1/4 = 1/(2K - 2), and its deadline is the earliest.
        counts, deficit = apportion(np.array([0.625, 0.25, 0.125]), 1, np.array([-0.375, 0.25, 0.125]))
        assert counts.tolist() == [1, 0, 0]
        assert deficit.tolist() == [-0.75, 0.5, 0.25]

    def test_of_streams_that_are_due_at_once_the_one_least_behind_waits(self) -> None:
        counts, _ = apportion(np.array([0.2, 0.2, 0.6]), 1, np.array([0.95, 0.85, -1.8]))
        assert counts.tolist() == [1, 0, 0]

    def test_how_far_a_stream_is_behind_is_told_with_what_it_gets_now(self) -> None:
        # Owed 2.76, 1.6 and -1.36 samples, due are 3 and 1: the first would be ahead, the second is still behind.
        counts, _ = apportion(np.array([0.5, 0.3, 0.2]), 3, np.array([1.26, 0.7, -1.96]))
        assert counts.tolist() == [2, 1, 0]

    @pytest.mark.parametrize("total", [1, 2, 3, 17, 39])
    @pytest.mark.parametrize("seed", range(4))
    def test_what_is_free_goes_to_the_earliest_deadlines(self, seed: int, total: int) -> None:
        shares = normalised(np.random.default_rng(seed).uniform(0.5, 1.5, size=40))
        counts, _ = apportion(shares, total, np.zeros(40))
        slack = tijdeman(40)
        owed = shares * total
        due = np.maximum(np.ceil(owed - slack), 0.0)
        deadlines = [
            (slack - behind) / share if behind >= 1.0 - slack else np.inf
            for behind, share in zip(owed - due, shares, strict=True)
        ]
        first = sorted(range(40), key=lambda stream: deadlines[stream])[: total - int(due.sum())]
        due[first] += 1
        assert counts.tolist() == due.tolist()


class TestZeroWeights:
    @given(
        weights=st.lists(st.floats(0.0, 1.0).map(lambda w: w if w > 0.3 else 0.0), min_size=2, max_size=8).filter(any),
        batch_sizes=totals,
    )
    def test_they_get_exactly_nothing_and_the_others_all(self, weights: list[float], batch_sizes: list[int]) -> None:
        behind, counts = constant_run(weights, batch_sizes)
        absent = np.array(weights) == 0.0
        assert counts[:, absent].sum() == 0
        assert counts.sum(axis=1).tolist() == batch_sizes
        assert np.abs(behind).max() <= tijdeman(int((~absent).sum())) + TOLERANCE

    def test_what_a_leaving_stream_was_owed_is_shared_out(self) -> None:
        counts, deficit = apportion(np.array([0.5, 0.5, 0.0]), 2, np.array([0.1, -0.5, 0.4]))
        assert counts.sum() == 2
        assert deficit[2] == 0.0
        assert deficit.sum() == pytest.approx(0.0)

    def test_a_stream_that_comes_back_is_owed_nothing(self) -> None:
        deficit = np.zeros(3)
        for shares in ([0.4, 0.4, 0.2], [0.5, 0.5, 0.0], [0.4, 0.4, 0.2]):
            counts, deficit = apportion(np.array(shares), 5, deficit)
        assert counts.tolist() == [2, 2, 1]

    def test_streams_that_leave_and_return_keep_the_sum(self) -> None:
        random, deficit = np.random.default_rng(0), np.zeros(6)
        for _ in range(500):
            shares = random.dirichlet(np.ones(6)) * (random.random(6) < 0.6)
            shares = normalised(shares if shares.any() else np.ones(6))
            counts, deficit = apportion(shares, 7, deficit)
            assert counts.sum() == 7
            assert counts.min() >= 0
            assert counts[shares == 0].sum() == 0
            assert deficit.sum() == pytest.approx(0.0, abs=1e-9)
