"""Steps of one stream each: exact shares, ends of passes, batches without duplicates, resuming."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from tests.mixer.plans import make_plan
from tests.refusals import refused


def make_streams(*lengths: int, **fields: object) -> list[Stream]:
    return [Stream(f"s{k}", range(length), **fields) for k, length in enumerate(lengths)]


def whole(streams: Sequence[Stream], **options: object) -> Planner:
    return Planner(streams, seed=0, whole_step_size=8, **options)


def draw(planner: Planner, weights: Sequence[float], total: int, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    shares, available = planner.shares(np.array(weights, dtype=np.float64), 0.0)
    return planner.draw(shares, available, total, step)


def rows_of(planner: Planner, counts: np.ndarray, starts: np.ndarray, stream_id: int) -> list[int]:
    start, count = int(starts[stream_id]), int(counts[stream_id])
    return planner.cursors[stream_id].references(range(start, start + count)).tolist()


def in_pairs(batch_size: int, number: int, seed: int) -> list[list[int]]:
    """Batches of two in an order of the pass, and one of a single row."""
    order = np.random.default_rng([seed, number]).permutation(5).tolist()
    return [order[:2], order[2:4], order[4:]]


class TestShares:
    @given(
        weights=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6),
        total=st.integers(1, 64),
        num_steps=st.integers(1, 60),
    )
    def test_no_stream_drifts_from_its_share_by_a_whole_step(self, weights, total, num_steps) -> None:
        planner, shares = whole(make_streams(*[10**6] * len(weights))), np.array(weights) / sum(weights)
        slack = 1 - 1 / (2 * len(weights) - 2)
        for step in range(num_steps):
            draw(planner, weights, total, step)
            behind = shares * total * (step + 1) - planner.seen
            assert np.abs(behind).max() <= slack * total + 1e-6

    @given(
        lengths=st.lists(st.integers(1, 40), min_size=2, max_size=5),
        totals=st.lists(st.integers(1, 32), min_size=1, max_size=60),
    )
    def test_streams_whose_steps_are_cut_short_get_more_of_them(self, lengths, totals) -> None:
        planner, weights = whole(make_streams(*lengths)), np.arange(1, len(lengths) + 1)
        drawn = 0
        for step, total in enumerate(totals):
            counts, _ = draw(planner, weights, total, step)
            drawn += counts.sum()
        behind = weights / weights.sum() * drawn - planner.seen
        assert np.abs(behind).max() <= (2 + math.log(len(lengths))) * max(totals)
        assert planner.deficit == pytest.approx(behind, abs=1e-6)

    @given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), total=st.integers(1, 32))
    def test_a_step_is_one_streams_and_ends_where_its_pass_ends(self, lengths, total) -> None:
        planner = whole(make_streams(*lengths))
        for step in range(30):
            before = planner.positions.copy()
            counts, _ = draw(planner, [1.0] * len(lengths), total, step)
            chosen = int(counts.argmax())
            assert np.count_nonzero(counts) == 1
            assert counts[chosen] == min(total, lengths[chosen] - before[chosen] % lengths[chosen])

    @given(
        lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
        epochs=st.sampled_from([1.0, 1.5, 2.0]),
        drawing=st.sampled_from(["exact", "multinomial"]),
    )
    def test_every_stream_gives_exactly_its_samples(self, lengths, epochs, drawing) -> None:
        planner = whole(make_streams(*lengths, max_epochs=epochs), drawing=drawing)
        for step in range(1000):
            if not planner.shares(np.ones(len(lengths)), 0.0)[0].any():
                break
            draw(planner, [1.0] * len(lengths), 7, step)
        assert planner.seen.tolist() == [stream.end for stream in planner.streams]

    @given(lengths=st.lists(st.integers(4, 30), min_size=1, max_size=4), total=st.integers(1, 4))
    def test_without_the_rests_of_passes_all_steps_have_one_size(self, lengths, total) -> None:
        planner = Planner(make_streams(*lengths), 0, whole_step_size=total, drops_rest=True)
        for step in range(40):
            counts, starts = draw(planner, [1.0] * len(lengths), total, step)
            assert counts.sum() == total
            chosen = int(counts.argmax())
            rows = rows_of(planner, counts, starts, chosen)
            assert len(set(rows)) == total

    def test_random_steps_follow_the_shares_on_average(self) -> None:
        planner = whole(make_streams(10**6, 10**6), drawing="multinomial")
        for step in range(2000):
            draw(planner, [3, 1], 4, step)
        assert planner.seen[0] / planner.seen.sum() == pytest.approx(0.75, abs=0.03)

    def test_samples_on_top_are_refused(self) -> None:
        planner = whole(make_streams(10, 10))
        shares, available = planner.shares(np.ones(2), 0.0)
        with refused("mixing"):
            planner.draw(shares, available, 4, 0, np.array([0.0, 0.5]))

    def test_the_next_steps_are_foreseen(self) -> None:
        planner = whole([*make_streams(9), Stream("b", range(5), batches=in_pairs)])
        ahead = planner.lookahead_copy()
        foreseen = [draw(ahead, [1, 1], 4, step) for step in range(12)]
        made = [draw(planner, [1, 1], 4, step) for step in range(12)]
        assert all(np.array_equal(one, other) for one, other in zip(foreseen, made, strict=True))


class TestBatches:
    def test_each_step_is_the_next_batch_of_the_pass(self) -> None:
        planner = whole([Stream("b", range(5), batches=in_pairs, seed=3)])
        seed = planner.streams[0].order_key(0) % 2**31
        found = [rows_of(planner, *draw(planner, [1.0], 2, step), 0) for step in range(9)]
        assert found == [batch for number in range(3) for batch in in_pairs(2, number, seed)]

    def test_smaller_batches_can_be_left_out(self) -> None:
        planner = Planner([Stream("b", range(5), batches=in_pairs)], 0, whole_step_size=2, drops_rest=True)
        assert [draw(planner, [1.0], 2)[0].tolist() for _ in range(6)] == [[2]] * 6

    def test_a_batch_is_whole_where_an_epoch_has_less_left_and_a_larger_one_is_cut(self) -> None:
        for size, expected in ((8, [[0, 1, 2, 3, 4]] * 2), (3, [[0, 1, 2], [3, 4]])):
            stream = Stream("b", range(5), batches=lambda *_: [[0, 1, 2, 3, 4]])
            planner = Planner([stream], 0, whole_step_size=size)
            assert [rows_of(planner, *draw(planner, [1.0], 2, step), 0) for step in range(2)] == expected

    @pytest.mark.parametrize(("limit", "expected"), [({"max_epochs": 2}, 10), ({"max_samples": 7}, 7)])
    def test_a_stream_ends_at_its_limit(self, limit, expected) -> None:
        planner = whole([Stream("b", range(5), batches=in_pairs, **limit)])
        while planner.shares(np.ones(1), 0.0)[0].any():
            draw(planner, [1.0], 2)
        assert planner.seen.tolist() == [expected]

    @settings(max_examples=30)
    @given(before=st.integers(0, 20))
    def test_a_resumed_stream_goes_on_with_the_same_batches(self, before) -> None:
        first, second = (whole([Stream("b", range(5), batches=in_pairs), *make_streams(7)]) for _ in range(2))
        for step in range(before):
            draw(first, [1, 1], 2, step)
        second.load_state_dict(first.state_dict())
        for step in range(8):
            plans = [draw(planner, [1, 1], 2, step) for planner in (first, second)]
            assert rows_of(first, *plans[0], 0) == rows_of(second, *plans[1], 0)
            assert plans[0][0].tolist() == plans[1][0].tolist()

    def test_two_ranks_share_a_batch(self) -> None:
        planner = whole([Stream("b", range(6), batches=lambda *_: [[5, 0, 3, 1]])])
        counts, starts = draw(planner, [1.0], 4)
        plan = StepPlan(**{**vars(make_plan([4])), "counts": counts, "starts": starts})
        rows = [part.indices.tolist() for rank in range(2) for part in planner.rank_share(plan, rank, 2)]
        assert sorted(rows) == [[0, 1], [3, 5]] or sorted(rows) == [[0, 1], [5, 3]]

    @pytest.mark.parametrize("rows", [[], [[5]], [[-1]]])
    def test_rows_that_there_are_not_are_refused(self, rows) -> None:
        with refused("batches", stream="b"):
            whole([Stream("b", range(5), batches=lambda *_: rows)])

    def test_a_saved_order_of_another_kind_is_refused(self) -> None:
        saved = Planner(make_streams(5), seed=0).state_dict()
        with refused("shuffle"):
            whole([Stream("s0", range(5), batches=in_pairs)]).load_state_dict(saved)
