from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.mixture.apportion import apportion

TOLERANCE = 1e-6
HARD_WEIGHTS = (4937, 1432, 189, 23)


def tijdeman(num_streams: int) -> float:
    return 1.0 - 1.0 / (2 * num_streams - 2) if num_streams > 1 else 0.0


def normalised(weights: Iterable[float]) -> np.ndarray:
    array = np.array(list(weights), dtype=np.float64)
    return array / array.sum()


def constant_run(weights: Iterable[float], batch_sizes: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Gives how far each stream is behind its exact share after every step, and the counts."""
    shares, counts_of_steps = normalised(weights), []
    deficit = np.zeros(len(shares))
    for total in batch_sizes:
        counts, deficit = apportion(shares, total, deficit)
        counts_of_steps.append(counts)
    counts = np.array(counts_of_steps)
    owed = np.cumsum(list(batch_sizes))[:, None] * shares
    return owed - np.cumsum(counts, axis=0), counts


def one_by_one(shares: np.ndarray, total: int, deficit: np.ndarray) -> np.ndarray:
    """Too many are due: samples are taken away singly, always from the stream furthest ahead."""
    owed = deficit + shares * total
    slack = tijdeman(len(shares)) if len(shares) > 1 else 0.5
    counts = np.maximum(np.ceil(owed - slack - 1e-9), 0.0)
    while counts.sum() > total:
        served = np.flatnonzero(counts)
        counts[served[np.argmin((owed - counts)[served])]] -= 1.0
    return counts.astype(np.int64)


@given(
    seed=st.integers(0, 10**6),
    num_streams=st.integers(2, 60),
    share_due=st.floats(0.3, 1.0),
    most_due=st.sampled_from([1.0, 3.5, 40.0]),
    is_coarse=st.booleans(),
)
def test_as_many_wait_as_if_taken_singly(seed, num_streams, share_due, most_due, is_coarse) -> None:
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


class TestCounts:
    @pytest.mark.parametrize(
        ("shares", "total", "deficit", "expected", "left"),
        [
            ([0.5, 0.25, 0.25], 8, [0.0] * 3, [4, 2, 2], [0.0] * 3),
            ([1.0], 17, [0.0], [17], [0.0]),
            ([1.0], 1, [0.5], [1], [0.5]),
            ([0.5, 0.3, 0.2], 0, [0.0] * 3, [0, 0, 0], [0.0] * 3),
            # The first stream is behind by exactly 1/4 = 1/(2K - 2), and its deadline is the earliest.
            ([0.625, 0.25, 0.125], 1, [-0.375, 0.25, 0.125], [1, 0, 0], [-0.75, 0.5, 0.25]),
            # Of streams that are due at once the one least behind waits.
            ([0.2, 0.2, 0.6], 1, [0.95, 0.85, -1.8], [1, 0, 0], [0.15, 1.05, -1.2]),
            # Owed 2.76, 1.6 and -1.36 samples, due are 3 and 1: the first would be ahead, the second is still behind.
            ([0.5, 0.3, 0.2], 3, [1.26, 0.7, -1.96], [2, 1, 0], [0.76, 0.6, -1.36]),
            # What a leaving stream was owed is shared out: 2 * 0.5 + 0.1 + 0.2 and 2 * 0.5 - 0.5 + 0.2.
            ([0.5, 0.5, 0.0], 2, [0.1, -0.5, 0.4], [1, 1, 0], [0.3, -0.3, 0.0]),
        ],
    )
    def test_who_comes_first(self, shares, total, deficit, expected, left) -> None:
        arrays = np.array(shares), np.array(deficit)
        counts, found = apportion(arrays[0], total, arrays[1])
        assert counts.tolist() == expected
        assert found == pytest.approx(left, abs=1e-12)
        assert [array.tolist() for array in arrays] == [shares, deficit]  # they are left as they are

    def test_of_many_that_are_as_far_behind_the_last_ones_wait(self) -> None:
        deficit = np.array([*[0.9375] * 20, *[-0.9375] * 20])
        counts, _ = apportion(np.full(40, 1 / 40), 4, deficit)
        assert np.flatnonzero(counts).tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize("batch_size", [1, 7, 1_000])
@pytest.mark.parametrize("weights", [HARD_WEIGHTS, [1, 1], [1] * 7, [1000, 1], [2.0**-k for k in range(12)]])
def test_every_prefix_is_within_the_bound_of_tijdeman(weights: list[float], batch_size: int) -> None:
    behind, _ = constant_run(weights, [batch_size] * 600)
    assert np.abs(behind).max() <= tijdeman(len(weights)) + TOLERANCE


@pytest.mark.parametrize("num_streams", [4, 30, 100])
@pytest.mark.parametrize("num_favoured", [None, 1, 3])
def test_an_adversary_that_feeds_who_is_furthest_behind(num_streams: int, num_favoured: int | None) -> None:
    """The emptying game, where no number is given: fills alike whoever was never served, one fewer each time."""
    behind, deficit, most = np.zeros(num_streams), np.zeros(num_streams), 0.0
    for step in range(5 * num_streams):
        shares = np.full(num_streams, 1e-9)
        shares[np.argsort(-behind, kind="stable")[: num_favoured or num_streams - step % num_streams]] = 1.0
        shares /= shares.sum()
        counts, deficit = apportion(shares, 1, deficit)
        behind = behind + shares - counts
        most = max(most, behind.max())
        assert behind.min() >= -1.0 - TOLERANCE
    assert num_favoured or most > 1.0
    assert most <= 1.0 + np.log(num_streams) + TOLERANCE


@pytest.mark.parametrize("total", [1, 3, 39])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_free_goes_to_the_earliest_deadlines(seed: int, total: int) -> None:
    shares = normalised(np.random.default_rng(seed).uniform(0.5, 1.5, size=40))
    counts, _ = apportion(shares, total, np.zeros(40))
    slack, owed = tijdeman(40), shares * total
    due = np.maximum(np.ceil(owed - slack), 0.0)
    deadlines = np.where(owed - due >= 1.0 - slack, (slack - (owed - due)) / shares, np.inf)
    due[np.argsort(deadlines, kind="stable")[: total - int(due.sum())]] += 1
    assert counts.tolist() == due.tolist()


@pytest.mark.parametrize("num_streams", [5, 16, 17, 40])
def test_of_equal_deadlines_the_first_streams_come_first_on_every_processor(num_streams: int) -> None:
    # Shares alternate: streams of a share have one deadline, and those of the larger one the earlier.
    shares = normalised([2.0 if number % 2 else 1.0 for number in range(num_streams)])
    counts, _ = apportion(shares, 3 * num_streams // 4, np.zeros(num_streams))
    few, many = (np.flatnonzero(counts[start::2]) for start in (0, 1))
    assert len(many) == num_streams // 2
    assert few.tolist() == [*range(3 * num_streams // 4 - num_streams // 2)]


@given(
    seed=st.integers(0, 10**6),
    num_streams=st.integers(1, 16),
    total=st.integers(0, 70),
    most_due=st.sampled_from([0.9, 3.5]),
    is_coarse=st.booleans(),
)
def test_few_streams_get_the_same_to_the_bit_as_among_many(seed, num_streams, total, most_due, is_coarse) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(0, 3, num_streams) if is_coarse else random.dirichlet(np.ones(num_streams))
    shares = normalised([*weights[:-1], 1.0])
    deficit = np.where(shares > 0, random.uniform(-most_due, most_due, num_streams), 0.0)
    deficit -= deficit.sum() * shares
    counts, left = apportion(shares, total, deficit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixer.mixture.apportion._FEW", 0)
        expected, expected_left = apportion(shares, total, deficit)
    assert counts.dtype == expected.dtype
    assert counts.tolist() == expected.tolist()
    assert left.tolist() == expected_left.tolist()


class TestZeroWeights:
    @given(
        weights=st.lists(st.floats(0.0, 1.0).map(lambda w: w if w > 0.3 else 0.0), min_size=2, max_size=8).filter(any),
        batch_sizes=st.lists(st.integers(1, 300), min_size=1, max_size=120),
    )
    def test_they_get_exactly_nothing_and_the_others_all(self, weights: list[float], batch_sizes: list[int]) -> None:
        behind, counts = constant_run(weights, batch_sizes)
        absent = np.array(weights) == 0.0
        assert counts[:, absent].sum() == 0
        assert counts.sum(axis=1).tolist() == batch_sizes
        assert np.abs(behind).max() <= tijdeman(int((~absent).sum())) + TOLERANCE

    def test_a_stream_that_comes_back_is_owed_nothing(self) -> None:
        deficit = np.zeros(3)
        for shares in ([0.4, 0.4, 0.2], [0.5, 0.5, 0.0], [0.4, 0.4, 0.2]):
            counts, deficit = apportion(np.array(shares), 5, deficit)
        assert counts.tolist() == [2, 2, 1]
