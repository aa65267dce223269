from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.mixture.stream import Stream
from mixer.policies import Fixed, LossChange, Mixture, Scheduled, Uniform
from replay.policies import ReplayRatio
from tests.replay.policies.updates import MEMORIES, MIXED, OTHERS, one_memory, run_planned, shown


class TestValues:
    def test_the_memories_have_their_part_of_the_final_mix(self) -> None:
        weights = ReplayRatio(0.2, Uniform(), shares={"late": 3, "early": 1}).start(MIXED).weights
        np.testing.assert_allclose(weights, [0.05, 0.8 / 3, 0.15, 0.8 / 3, 0.8 / 3])

    def test_they_share_equally_unless_they_are_told(self) -> None:
        np.testing.assert_allclose(ReplayRatio(0.3).start(MIXED).weights[MEMORIES], [0.15, 0.15])

    @pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0.0), (0.25, 1 / 3), (0.5, 1.0), (0.9, 9.0)])
    def test_on_top_of_the_batch_the_ratio_means_the_same(self, ratio: float, expected: float) -> None:
        decision = ReplayRatio(ratio, additional=True).start(MIXED)
        assert decision.additional.sum() == pytest.approx(expected)
        assert expected / (1 + expected) == pytest.approx(ratio)
        assert decision.weights[OTHERS].sum() == pytest.approx(1.0)

    @given(ratio=st.floats(0, 0.999999), first=st.floats(0.01, 10))
    def test_replayed_samples_are_in_proportion_to_new_ones(self, ratio: float, first: float) -> None:
        weights = ReplayRatio(ratio, shares={"early": first, "late": 1}).start(MIXED).weights
        assert weights[MEMORIES].sum() == pytest.approx(ratio / (1 - ratio) * weights[OTHERS].sum())
        assert weights[0] == pytest.approx(first * weights[2])

    def test_a_course_is_followed(self) -> None:
        policy = ReplayRatio([(0.0, 0.1), (1.0, 0.3)])
        found = [policy.start(MIXED), *(policy.update(shown(5, progress=at)) for at in (0.5, 1.0))]
        np.testing.assert_allclose([d.weights[MEMORIES].sum() for d in found], [0.1, 0.2, 0.3])


class TestPresence:
    def test_streams_that_are_not_there_do_not_count(self) -> None:
        policy = ReplayRatio(0.5, Fixed())
        weights = policy.start(one_memory(4)).weights
        shares = np.array([0.2, 0, 0, 0, 0.8])  # what the planner makes of the first decision for the first task
        weights = policy.update(shown(5, weights=weights, shares=shares)).weights
        assert weights[0] == pytest.approx(weights[4])
        np.testing.assert_allclose(weights[:4], weights[0])

    def test_an_empty_memory_leaves_its_part_to_the_other(self) -> None:
        policy = ReplayRatio(0.4, Fixed())
        weights = policy.start(MIXED).weights
        shares = np.where([True, True, False, True, True], weights, 0.0)
        later = policy.update(shown(5, weights=weights, shares=shares / shares.sum())).weights
        drawn = np.where([True, True, False, True, True], later, 0.0)
        assert drawn[0] / drawn.sum() == pytest.approx(0.4)
        assert later[2] > 0  # or it could never be seen to be there

    def test_so_does_one_on_top_of_the_batch(self) -> None:
        policy = ReplayRatio(0.5, additional=True)
        weights = policy.start(MIXED).weights
        some = policy.update(shown(5, weights=weights, shares=weights, active=[True, True, False, True, True]))
        none = policy.update(shown(5, weights=weights, shares=weights, active=[False, True, False, True, True]))
        assert some.additional[[0, 2]].tolist() == [1.0, 0.5]
        assert none.additional[[0, 2]].tolist() == [0.5, 0.5]

    def test_a_stream_that_was_asked_for_nothing_counts_as_there(self) -> None:
        steps = [(0.0, {"task 0": 1, "task 1": 0}), (0.5, {"task 0": 1, "task 1": 3})]
        policy = ReplayRatio(0.4, Scheduled(steps, "step"))
        weights = policy.start(one_memory(2)).weights
        later = policy.update(shown(3, weights=weights, shares=weights, active=[True] * 3, progress=0.5)).weights
        np.testing.assert_allclose(later, [0.15, 0.45, 0.4])

    def test_with_nothing_new_left_memories_go_on(self) -> None:
        policy = ReplayRatio(0.4, Fixed())
        weights = policy.start(one_memory(2)).weights
        later = policy.update(shown(3, weights=weights, shares=[0, 0, 1.0])).weights
        assert later[2] == pytest.approx(0.4)


class TestStatic:
    @pytest.mark.parametrize(
        ("make", "num_others", "expected"),
        [
            (lambda: ReplayRatio(0.2), 1, True),
            (lambda: ReplayRatio(0.2, additional=True), 3, True),
            (lambda: ReplayRatio(0.2), 3, False),  # tasks may come and go
            (lambda: ReplayRatio("tasks"), 1, False),
            (lambda: ReplayRatio([(0.0, 0.2)]), 1, False),
            (lambda: ReplayRatio(0.2, LossChange()), 1, False),
        ],
    )
    def test_it_is_asked_again_where_something_can_change(
        self, make: Callable[[], ReplayRatio], num_others: int, expected: bool
    ) -> None:
        policy = make()
        policy.start(one_memory(num_others))
        assert policy.is_static is expected

    def test_several_memories_fill_one_by_one(self) -> None:
        policy = ReplayRatio(0.2, additional=True)
        policy.start(MIXED)
        assert not policy.is_static

    @pytest.mark.parametrize("additional", [False, True])
    def test_a_static_one_would_decide_the_same_again(self, additional: bool) -> None:
        policy = ReplayRatio(0.3, additional=additional)
        first = policy.start(one_memory(1))
        for seen in ([4, 0], [4, 3]):
            again = policy.update(shown(2, weights=first.weights, shares=first.weights, seen=seen))
            np.testing.assert_array_equal(again.weights, first.weights)
            np.testing.assert_array_equal(again.additional, first.additional)


class TestPlanned:
    """What a run through the planner comes to; a memory that fills is a stream that enters late."""

    @staticmethod
    def parts(counts: np.ndarray, memories: list[int]) -> np.ndarray:
        return counts[:, memories].sum(axis=1) / counts.sum(axis=1)

    @given(ratio=st.floats(0.0, 0.95))
    def test_the_part_is_that_asked_for_to_the_sample(self, ratio: float) -> None:
        streams = [Stream(name, range(50)) for name in ("a", "b", "memory")]
        mixture = Mixture(("a", "b", "memory"), np.array([50, 50, 50]), np.full(3, 1 / 3), (2,))
        counts = run_planned(ReplayRatio(ratio, {"a": 3, "b": 1}), streams, mixture, 30)
        assert counts[:, 2].sum() == pytest.approx(ratio * 30 * 40, abs=1.0)
        assert counts[:, 0].sum() == pytest.approx(0.75 * (1 - ratio) * 30 * 40, abs=1.0)

    def test_tasks_in_turn_leave_the_memories_their_part(self) -> None:
        spans = [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]
        streams = [Stream(f"task {k}", range(99), enters_at=a, leaves_at=b) for k, (a, b) in enumerate(spans)]
        streams.append(Stream("memory", range(99), enters_at=0.1))
        counts = run_planned(ReplayRatio(0.25), streams, one_memory(4), 40)
        parts = self.parts(counts, [4])
        assert not parts[:4].any()
        # In the first step in which the memory is there, and in all others, at each change of tasks too.
        np.testing.assert_allclose(parts[4:], 0.25, atol=1 / 40 + 1e-9)
        assert (counts[:, :4] > 0).sum(axis=1).tolist() == [1] * 40

    def test_by_tasks_each_has_as_much_as_the_others(self) -> None:
        spans = [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]
        streams = [Stream(f"task {k}", range(99), enters_at=a, leaves_at=b) for k, (a, b) in enumerate(spans)]
        streams.append(Stream("memory", range(99)))
        parts = self.parts(run_planned(ReplayRatio("tasks"), streams, one_memory(4), 40), [4])
        for task in range(4):  # the first step of a task shows that it is there
            np.testing.assert_allclose(parts[10 * task + 1 : 10 * task + 10], task / (task + 1), atol=1 / 40 + 1e-9)

    def test_memories_that_fill_one_by_one_share_what_there_is(self) -> None:
        mixture = Mixture(("new", "one", "two"), np.array([9, 0, 0]), np.full(3, 1 / 3), (1, 2))
        streams = [Stream("new", range(9)), Stream("one", range(9)), Stream("two", range(9), enters_at=0.5)]
        counts = run_planned(ReplayRatio(0.5), streams, mixture, 20)
        np.testing.assert_allclose(self.parts(counts, [1, 2])[1:10], 0.5)
        np.testing.assert_allclose(self.parts(counts, [1, 2])[11:], 0.5)
        assert counts[1:10, 1].tolist() == [20] * 9
        assert counts[11:, 2].tolist() == [10] * 9

    def test_when_new_samples_run_out_only_memories_are_left(self) -> None:
        streams = [Stream("task 0", range(100), max_epochs=1), Stream("memory", range(9))]
        counts = run_planned(ReplayRatio(0.5), streams, one_memory(1), 10)
        assert counts[:, 0].sum() == 100
        assert counts[6:, 1].tolist() == [40] * 4


class TestErrors:
    @pytest.mark.parametrize("ratio", [1.0, -0.1, 2, np.nan])
    def test_a_ratio_outside_its_range(self, ratio: float) -> None:
        with pytest.raises(ValueError, match=r"ratio must be a number in \[0, 1\)"):
            ReplayRatio(ratio)

    def test_shares_name_the_memories(self) -> None:
        with pytest.raises(ValueError, match=r"ReplayRatio.shares: .*\['early', 'late'\].*missing: \['late'\]"):
            ReplayRatio(shares={"early": 1}).start(MIXED)

    def test_shares_cannot_all_be_0(self) -> None:
        with pytest.raises(ValueError, match=r"ReplayRatio\.shares: the weights of all streams are 0"):
            ReplayRatio(shares={"early": 0, "late": 0}).start(MIXED)
