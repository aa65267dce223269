from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.mixture.permutation import Permutation, PermutationBlock, mix_bits
from mixer.utils.errors import InvalidValueError
from tests.refusals import refused

SMALL_LENGTHS = [*range(1, 20), 63, 64, 65]
EDGE_LENGTHS = sorted({2**power + offset for power in (7, 10, 12, 16) for offset in (-1, 0, 1)})


def is_permutation(indices: np.ndarray, length: int) -> bool:
    return len(indices) == length and np.array_equal(np.sort(indices), np.arange(length))


def chi_square(observed: np.ndarray) -> float:
    expected = observed.sum() / observed.size
    return float(((observed - expected) ** 2 / expected).sum())


def chi_square_limit(degrees: int) -> float:
    return degrees + 4.5 * np.sqrt(2 * degrees)


class TestExactCoverage:
    @pytest.mark.parametrize("length", [*SMALL_LENGTHS, *EDGE_LENGTHS])
    def test_every_epoch_is_a_permutation(self, length: int) -> None:
        epochs = Permutation(length, seed=11).indices(3 * length, 4 * length).reshape(4, length)
        assert all(is_permutation(epoch, length) for epoch in epochs)

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

    @given(
        length=st.one_of(st.integers(1, 5_000), st.integers(1, 2**40)),
        seed=st.integers(-(2**63), 2**63 - 1),
        epochs=st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
        shuffle=st.booleans(),
        data=st.data(),
    )
    def test_positions_undoes_the_order(self, length, seed, epochs, shuffle, data) -> None:
        order = Permutation([9, length], [1, seed], [True, shuffle])
        positions = [epoch * length + data.draw(st.integers(0, length - 1)) for epoch in epochs]
        rows = order.map_positions(np.ones(len(positions), dtype=np.int64), positions)
        assert order.positions(rows, epochs, stream_id=1).tolist() == positions

    @pytest.mark.parametrize("length", [10**15 + 37, 2**62 - 1])
    def test_a_length_of_many_billions_costs_nothing(self, length: int) -> None:
        indices = Permutation(length, seed=5).indices(length - 500, 1_000)
        assert indices.min() >= 0
        assert indices.max() < length
        assert len(set(indices[:500].tolist())) == len(set(indices[500:].tolist())) == 500


class TestRandomness:
    @pytest.mark.parametrize("length", [2, 3, 4, 5])
    @pytest.mark.parametrize("over", ["seeds", "epochs"])
    def test_all_permutations_of_few_samples_are_equally_frequent(self, over: str, length: int) -> None:
        number = 12_000
        if over == "seeds":
            whole = Permutation([length] * number, range(number))
            found = whole.map_positions(np.repeat(np.arange(number), length), np.tile(np.arange(length), number))
        else:
            found = Permutation(length, seed=1).indices(0, number * length)
        numbers = {permutation: number for number, permutation in enumerate(permutations(range(length)))}
        observed = np.bincount([numbers[tuple(row)] for row in found.reshape(-1, length).tolist()])
        assert len(observed) == len(numbers)
        assert chi_square(observed) < chi_square_limit(len(numbers) - 1)

    @pytest.mark.parametrize("length", [6, 17, 64])
    def test_every_sample_is_equally_frequent_at_every_position(self, length: int) -> None:
        num_epochs = 60 * length
        epochs = Permutation(length, seed=2).indices(0, num_epochs * length).reshape(num_epochs, length)
        observed = np.stack([np.bincount(epochs[:, position], minlength=length) for position in range(length)])
        assert chi_square(observed) < chi_square_limit((length - 1) ** 2)

    @pytest.mark.parametrize("length", [1_000, 4_096])
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


class TestManyStreams:
    @given(
        lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=6),
        pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100_000)), max_size=40),
    )
    def test_pairs_are_mapped_as_their_stream_maps_them(self, lengths: list[int], pairs: list[tuple[int, int]]) -> None:
        pairs = [(stream % len(lengths), position) for stream, position in pairs]
        together = Permutation(lengths, seed=range(len(lengths)))
        ids, positions = [stream for stream, _ in pairs], [position for _, position in pairs]
        alone = [int(Permutation(lengths[stream], stream).indices(position, 1)[0]) for stream, position in pairs]
        assert together.map_positions(ids, positions).tolist() == alone

    def test_shuffling_is_chosen_for_each_stream(self) -> None:
        together = Permutation([10, 20, 50], seed=[1, 2, 3], shuffle=[True, True, False])
        assert np.array_equal(together.indices(5, 30, stream_id=1), Permutation(20, 2).indices(5, 30))
        assert together.indices(45, 10, stream_id=2).tolist() == [*range(45, 50), *range(5)]
        assert Permutation(7, seed=3, shuffle=False).indices(0, 14).tolist() == [*range(7)] * 2


class TestArguments:
    @pytest.mark.parametrize("length", [0, -1, 2**62, 2**70])
    def test_a_length_that_cannot_be_is_refused(self, length: int) -> None:
        with pytest.raises(InvalidValueError) as refused:
            Permutation([5, length], [0, 1])
        facts = refused.value.option, refused.value.expected, refused.value.found
        assert facts == ("length", f"from 1 to {2**62 - 1:,}", length)

    def test_a_seed_is_needed_for_each_stream(self) -> None:
        with refused("length"):
            Permutation([5, 6], [0])

    @pytest.mark.parametrize(
        ("length", "seed", "start", "expected"),
        [
            (5, 7, 0, [3, 1, 4, 2, 0]),
            (10, 7, 0, [0, 3, 2, 5, 1, 7, 4, 8, 6, 9]),
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
    def test_the_order_of_a_seed_never_changes(self, length: int, seed: int, start: int, expected: list[int]) -> None:
        assert Permutation(length, seed).indices(start, len(expected)).tolist() == expected


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

    def test_few_positions_far_from_a_block_leave_it_to_the_steps(self) -> None:
        block = PermutationBlock(order := Counted(1_000, seed=1), 32)
        far = np.array([700, 704, 708])
        block.read(far)  # a block is mapped where there is none
        block.read(range(10, 42))
        self.assert_reads(Permutation(1_000, seed=1), block, far)
        block.read(range(12, 20))
        block.read(np.array([42, 44]))  # a step of a rank
        assert order.asked == [(700, 32), (10, 32), (700, 3), (42, 32)]

    def block(self, length: int = 32) -> tuple[Permutation, PermutationBlock]:
        whole = Permutation(1_000, seed=1)
        return whole, PermutationBlock(whole, length)

    def assert_reads(self, whole: Permutation, block: PermutationBlock, positions: range | np.ndarray) -> None:
        expected = whole.map_positions(np.zeros(len(positions), dtype=np.int64), np.array(positions, dtype=np.int64))
        assert block.read(positions).tolist() == expected.tolist()

    def test_nothing_is_asked(self) -> None:
        assert Permutation(5, seed=0).indices(3, 0).tolist() == []
        _, block = self.block()
        for nothing in (range(5, 5), np.zeros(0, dtype=np.int64)):
            assert block.read(nothing).tolist() == []
            assert block.read(nothing).dtype == np.int64
        block.read(range(3, 9))
        assert block.read(range(5, 5)).tolist() == []

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
            self.assert_reads(whole, block, np.arange(cursor, cursor + count, world_size)[::2])  # positions with gaps
            cursor += count
