import doctest
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.mixture import permutation as order
from mixer.mixture.permutation import Permutation, PermutationBlock, mix_bits

SMALL_LENGTHS = range(1, 71)
EDGE_LENGTHS = sorted({2**power + offset for power in range(7, 21) for offset in (-1, 0, 1)})
BLOCK_THRESHOLDS = (4_095, 4_096, 4_097)


def is_permutation(indices: np.ndarray, length: int) -> bool:
    return len(indices) == length and np.array_equal(np.sort(indices), np.arange(length))


def chi_square(observed: np.ndarray) -> float:
    expected = observed.sum() / observed.size
    return float(((observed - expected) ** 2 / expected).sum())


def chi_square_limit(degrees: int) -> float:
    return degrees + 4.5 * np.sqrt(2 * degrees)


class TestExactCoverage:
    @pytest.mark.parametrize("length", SMALL_LENGTHS)
    def test_every_epoch_of_a_small_stream_is_a_permutation(self, length: int) -> None:
        epochs = Permutation(length, seed=11).indices(0, 6 * length).reshape(6, length)
        assert all(is_permutation(epoch, length) for epoch in epochs)

    @pytest.mark.parametrize("length", EDGE_LENGTHS)
    def test_every_epoch_around_a_power_of_two_is_a_permutation(self, length: int) -> None:
        num_epochs = 2 if length < 300_000 else 1
        epochs = Permutation(length, seed=length).indices(3 * length, num_epochs * length).reshape(num_epochs, length)
        assert all(is_permutation(epoch, length) for epoch in epochs)

    @pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
    @pytest.mark.parametrize("length", [1, 2, 7, 64, *BLOCK_THRESHOLDS])
    def test_any_key_gives_permutations(self, length: int, seed: int) -> None:
        assert is_permutation(Permutation(length, seed).indices(0, length), length)

    @given(length=st.integers(1, 3_000), epoch=st.integers(0, 10**9), seed=st.integers(-(2**63), 2**63 - 1))
    def test_any_epoch_is_a_permutation(self, length: int, epoch: int, seed: int) -> None:
        assert is_permutation(Permutation(length, seed).indices(epoch * length, length), length)

    @given(
        length=st.integers(1, 200),
        seed=st.integers(0, 99),
        cuts=st.lists(st.integers(0, 1_000), min_size=1, max_size=8),
    )
    def test_any_walk_across_epoch_borders_is_a_cut_of_the_whole(self, length: int, seed: int, cuts: list[int]) -> None:
        whole, ends = Permutation(length, seed), sorted(cuts)
        pieces = [whole.indices(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
        assert np.array_equal(np.concatenate(pieces), whole.indices(0, ends[-1]))

    def test_a_length_of_many_billions_costs_nothing(self) -> None:
        length = 10**15 + 37
        indices = Permutation(length, seed=5).indices(length - 500, 1_000)
        assert indices.min() >= 0
        assert indices.max() < length
        assert len(set(indices[:500].tolist())) == len(set(indices[500:].tolist())) == 500

    def test_the_largest_length_stays_inside(self) -> None:
        length = 2**62 - 1
        indices = Permutation(length, seed=5).indices(0, 2_000)
        assert indices.min() >= 0
        assert indices.max() < length
        assert len(set(indices.tolist())) == 2_000


class TestRandomness:
    @pytest.mark.parametrize("length", [5, 16, 63, 1_000])
    def test_epochs_differ(self, length: int) -> None:
        epochs = Permutation(length, seed=4).indices(0, 5 * length).reshape(5, length)
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == 5

    @pytest.mark.parametrize("length", [8, 63, 1_000])
    def test_seeds_differ(self, length: int) -> None:
        orders = {tuple(Permutation(length, seed).indices(0, length).tolist()) for seed in range(20)}
        assert len(orders) == 20

    @pytest.mark.parametrize("length", [2, 3, 4, 5])
    def test_all_permutations_of_few_samples_are_equally_frequent_over_seeds(self, length: int) -> None:
        num_seeds = 24_000
        whole = Permutation([length] * num_seeds, range(num_seeds))
        found = whole.map_positions(np.repeat(np.arange(num_seeds), length), np.tile(np.arange(length), num_seeds))
        self._assert_uniform(found.reshape(num_seeds, length), length)

    @pytest.mark.parametrize("length", [2, 3, 4, 5])
    def test_all_permutations_of_few_samples_are_equally_frequent_over_epochs(self, length: int) -> None:
        found = Permutation(length, seed=1).indices(0, 24_000 * length).reshape(24_000, length)
        self._assert_uniform(found, length)

    @pytest.mark.parametrize("length", [6, 9, 17, 64, 70])
    def test_every_sample_is_equally_frequent_at_every_position(self, length: int) -> None:
        num_epochs = 100 * length
        epochs = Permutation(length, seed=2).indices(0, num_epochs * length).reshape(num_epochs, length)
        observed = np.stack([np.bincount(epochs[:, position], minlength=length) for position in range(length)])
        assert chi_square(observed) < chi_square_limit((length - 1) ** 2)

    @pytest.mark.parametrize("length", [1_000, 4_095, 4_096, 65_537])
    def test_neighbours_are_not_correlated(self, length: int) -> None:
        indices = Permutation(length, seed=3).indices(0, length).astype(np.float64)
        bound = 4.0 / np.sqrt(length)
        assert abs(np.corrcoef(indices[1:], indices[:-1])[0, 1]) < bound
        assert abs(np.corrcoef(indices, np.arange(length))[0, 1]) < bound

    def test_mixed_bits_change_in_half_of_the_places(self) -> None:
        words = np.arange(2_000, dtype=np.uint64)
        for bit in range(64):
            changed = mix_bits(words) ^ mix_bits(words ^ np.uint64(1 << bit))
            assert abs(np.bitwise_count(changed).mean() - 32.0) < 1.0

    @staticmethod
    def _assert_uniform(found: np.ndarray, length: int) -> None:
        numbers = {permutation: number for number, permutation in enumerate(permutations(range(length)))}
        observed = np.bincount([numbers[tuple(row)] for row in found.tolist()], minlength=len(numbers))
        assert chi_square(observed) < chi_square_limit(len(numbers) - 1)


class TestManyStreams:
    @given(
        lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=6),
        pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100_000)), max_size=40),
    )
    def test_pairs_are_mapped_as_their_own_stream_maps_them(
        self, lengths: list[int], pairs: list[tuple[int, int]]
    ) -> None:
        pairs = [(stream % len(lengths), position) for stream, position in pairs]
        together = Permutation(lengths, seed=range(len(lengths)))
        ids, positions = [stream for stream, _ in pairs], [position for _, position in pairs]
        alone = [int(Permutation(lengths[stream], stream).indices(position, 1)[0]) for stream, position in pairs]
        assert together.map_positions(ids, positions).tolist() == alone

    def test_indices_reads_the_stream_that_is_asked_for(self) -> None:
        together = Permutation([10, 20], seed=[1, 2])
        assert np.array_equal(together.indices(5, 30, stream_id=1), Permutation(20, 2).indices(5, 30))

    def test_shuffling_is_chosen_for_each_stream(self) -> None:
        together = Permutation([50, 50], seed=[1, 2], shuffle=[False, True])
        assert together.indices(45, 10, stream_id=0).tolist() == [*range(45, 50), *range(5)]
        assert np.array_equal(together.indices(0, 50, stream_id=1), Permutation(50, 2).indices(0, 50))

    def test_without_shuffling_the_order_is_that_of_the_data_set(self) -> None:
        assert Permutation(7, seed=3, shuffle=False).indices(0, 14).tolist() == [*range(7)] * 2


class TestArguments:
    @pytest.mark.parametrize("length", [0, -1, 2**62])
    def test_a_length_that_cannot_be_is_refused(self, length: int) -> None:
        with pytest.raises(ValueError, match="length must be between 1 and"):
            Permutation(length, seed=0)

    def test_one_bad_length_among_good_ones_is_refused(self) -> None:
        with pytest.raises(ValueError, match="length must be between 1 and"):
            Permutation([5, 0], seed=[0, 1])

    def test_each_stream_needs_a_seed(self) -> None:
        with pytest.raises(ValueError, match="one entry per stream, got 2 and 1"):
            Permutation([5, 6], seed=[0])

    def test_nothing_is_asked(self) -> None:
        assert Permutation(5, seed=0).indices(3, 0).tolist() == []

    def test_the_order_of_a_seed_never_changes(self) -> None:
        assert Permutation(length=5, seed=7).indices(start=0, count=5).tolist() == [3, 1, 4, 2, 0]
        assert Permutation(length=10, seed=7).indices(start=0, count=10).tolist() == [0, 3, 2, 5, 1, 7, 4, 8, 6, 9]

    @pytest.mark.parametrize(
        ("length", "seed", "start", "expected"),
        [
            (2, 1, 10, [0, 1, 0, 1, 1, 0]),
            (17, -5, 160, [15, 7, 14, 6, 13, 2]),
            (4_095, 3, 4_090, [1014, 2594, 889, 2106, 461, 2655]),
            (4_096, 3, 4_090, [3122, 2243, 1644, 791, 846, 49]),
            (4_097, 3, 4_090, [529, 3818, 3363, 3257, 169, 2406]),
            (10**6, -(2**63), 10**9, [331388, 593549, 650550, 440456, 551351, 138785]),
            (2**40 + 1, 2**63 - 1, 7, [650998983640, 705165278696, 563226084315, 452687628972]),
            (2**62 - 1, 0, 2**62, [2693044442005230019, 176567468628872221, 4191139786592404212]),
        ],
    )
    def test_nor_do_those_of_other_lengths_in_later_epochs(
        self, length: int, seed: int, start: int, expected: list[int]
    ) -> None:
        assert Permutation(length, seed).indices(start, len(expected)).tolist() == expected

    def test_the_example_of_the_documentation_holds(self) -> None:
        results = doctest.testmod(order)
        assert results.attempted > 0
        assert results.failed == 0


class Counted(Permutation):
    """Notes which positions it is asked for."""

    def map_positions(self, stream_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        self.asked = [*getattr(self, "asked", []), (int(positions[0]), len(positions))]
        return super().map_positions(stream_ids, positions)


class TestOrderBlock:
    @pytest.mark.parametrize("length", [32, None])
    def test_a_block_is_mapped_once(self, length: int | None) -> None:
        order = Counted(100_000, seed=1)
        block = PermutationBlock(order) if length is None else PermutationBlock(order, length)
        size = length or 4_096
        for start in range(0, size, 8):
            block.read(range(start, start + 8))
        assert order.asked == [(0, size)]
        block.read(range(size - 1, size + 1))
        assert order.asked[1:] == [(size - 1, size)]

    def test_more_than_a_block_is_mapped_by_itself(self) -> None:
        block = PermutationBlock(order := Counted(1_000, seed=1), 32)
        block.read(range(10, 42))
        block.read(range(100, 133))
        block.read(range(10, 42))
        assert order.asked == [(10, 32), (100, 33)]

    def block(self, length: int = 32) -> tuple[Permutation, PermutationBlock]:
        whole = Permutation(1_000, seed=1)
        return whole, PermutationBlock(whole, length)

    def assert_reads(self, whole: Permutation, block: PermutationBlock, positions: range | np.ndarray) -> None:
        expected = whole.map_positions(np.zeros(len(positions), dtype=np.int64), np.array(positions, dtype=np.int64))
        assert block.read(positions).tolist() == expected.tolist()

    @pytest.mark.parametrize("count", [1, 3, 7, 16, 31, 32, 33, 500])
    def test_a_walk_forwards_reads_the_order(self, count: int) -> None:
        whole, block = self.block()
        for step in range(60):
            self.assert_reads(whole, block, range(step * count, (step + 1) * count))

    @pytest.mark.parametrize("begin", [0, 22, 23, 28, 31, 32, 990])
    def test_a_step_across_the_end_of_a_block_reads_the_order(self, begin: int) -> None:
        whole, block = self.block()
        self.assert_reads(whole, block, range(1))
        self.assert_reads(whole, block, range(begin, begin + 10))

    @pytest.mark.parametrize("jump", [0, 5, 95, 10_000, 2**40])
    def test_a_restart_or_a_jump_reads_the_order(self, jump: int) -> None:
        whole, block = self.block()
        for begin in (100, 110, jump, jump + 5, 100):
            self.assert_reads(whole, block, range(begin, begin + 5))

    @pytest.mark.parametrize("world_size", range(2, 9))
    def test_the_positions_of_a_rank_read_the_order(self, world_size: int) -> None:
        whole, block = self.block()
        for step in range(80):
            self.assert_reads(whole, block, range(step * 9 + step % world_size, (step + 1) * 9, world_size))

    @given(
        positions=st.lists(st.integers(0, 200), max_size=30, unique=True).map(sorted),
        begins=st.lists(st.sampled_from([0, 1, 40, 2**61]), min_size=1, max_size=4),
    )
    def test_positions_with_gaps_read_the_order(self, positions: list[int], begins: list[int]) -> None:
        whole, block = self.block(length=128)
        for begin in begins:
            self.assert_reads(whole, block, begin + np.array(positions, dtype=np.int64))

    def test_nothing_is_asked(self) -> None:
        _, block = self.block()
        assert block.read(range(5, 5)).tolist() == []
        assert block.read(np.zeros(0, dtype=np.int64)).tolist() == []
        block.read(range(3, 9))
        assert block.read(range(5, 5)).tolist() == []
        assert block.read(range(5, 5)).dtype == np.int64

    def test_what_was_read_stays_as_it_was(self) -> None:
        whole, block = self.block()
        read = block.read(range(20, 30))
        block.read(range(500, 530))
        assert np.array_equal(read, whole.indices(20, 10))

    @given(
        steps=st.lists(
            st.tuples(st.integers(0, 70), st.integers(1, 8), st.sampled_from([None, 0, 17, 10**6])), max_size=12
        )
    )
    def test_any_walk_reads_the_order(self, steps: list[tuple[int, int, int | None]]) -> None:
        whole, block = self.block()
        cursor = 0
        for count, world_size, jump in steps:
            cursor = cursor if jump is None else jump
            self.assert_reads(whole, block, range(cursor, cursor + count, world_size))
            cursor += count
