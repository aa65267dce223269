import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.policies import Constant, OfSeen, OverProgress, as_ratio
from tests.replay.policies.updates import one_memory, shown


def in_turn(ratio: OfSeen, sizes: list[int]) -> list[float]:
    """Ratios while each of the streams is there alone, one after the other."""
    ratio.start(one_memory(len(sizes), sizes))
    found = []
    for k in range(len(sizes)):
        shares = [0.0] * len(sizes) + [0.5]
        shares[k] = 0.5
        seen = [size if j <= k else 0 for j, size in enumerate(sizes)] + [3]
        found.append(ratio.update(shown(len(sizes) + 1, shares=shares, seen=seen)))
    return found


class TestConstant:
    @pytest.mark.parametrize("value", [0, 0.0, 0.1, 0.999, np.float64(0.5)])
    def test_holds(self, value: float) -> None:
        ratio = as_ratio(value)
        assert ratio.is_constant
        assert ratio.start(one_memory()) == ratio.update(shown(3, progress=0.7)) == float(value)

    @pytest.mark.parametrize("value", [1.0, 1, -0.1, np.nan, np.inf, True, None, b"0.1", {0.1}])
    def test_anything_else_is_refused(self, value: object) -> None:
        with pytest.raises(ValueError, match=r"ratio.*\[0, 1\)|ratio.*list of \(progress, ratio\)"):
            as_ratio(value)

    def test_the_error_says_what_a_ratio_is(self) -> None:
        with pytest.raises(ValueError, match=r"got 1\.5: it is the part of the whole mix that is replayed"):
            as_ratio(1.5)


class TestOverProgress:
    def test_is_linear_between_points_and_constant_outside(self) -> None:
        ratio = as_ratio([(0.2, 0.1), (0.6, 0.5)])
        assert not ratio.is_constant
        assert ratio.start(one_memory()) == pytest.approx(0.1)
        found = [ratio.update(shown(3, progress=at)) for at in (0.1, 0.2, 0.3, 0.4, 0.6, 1.0)]
        assert found == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.5, 0.5])

    def test_by_a_function(self) -> None:
        ratio = as_ratio(lambda progress: 0.4 * progress)
        assert ratio.start(one_memory()) == 0.0
        assert ratio.update(shown(3, progress=0.5)) == pytest.approx(0.2)

    def test_a_function_that_gives_no_ratio_is_named_with_its_progress(self) -> None:
        with pytest.raises(ValueError, match=r"ratio at progress 0.5 must be a number in \[0, 1\), got 1.0"):
            OverProgress(lambda progress: 2 * progress).update(shown(3, progress=0.5))

    @pytest.mark.parametrize(
        "points", [[], [(0.5, 0.1), (0.5, 0.2)], [(0.6, 0.1), (0.5, 0.2)], [(-0.1, 0.1)], [(1.1, 0.1)], [0.1, 0.2]]
    )
    def test_points_that_are_none_are_refused(self, points: list[object]) -> None:
        with pytest.raises(ValueError, match=r"ratio: .*progress"):
            as_ratio(points)

    def test_points_outside_the_range_are_refused_at_once(self) -> None:
        with pytest.raises(ValueError, match=r"ratio at progress 1 must be a number in \[0, 1\), got 1.0"):
            as_ratio([(0.0, 0.1), (1.0, 1.0)])


class TestOfSeen:
    def test_each_task_in_turn_gets_its_part_of_those_seen(self) -> None:
        assert in_turn(OfSeen("tasks"), [10, 70, 20]) == pytest.approx([0, 1 / 2, 2 / 3])

    def test_each_sample_of_the_past_counts_as_much_as_a_new_one(self) -> None:
        assert in_turn(OfSeen("samples"), [10, 70, 20]) == pytest.approx([0, 10 / 80, 80 / 100])

    @given(sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=8), by=st.sampled_from(["tasks", "samples"]))
    def test_is_a_ratio_whatever_the_sizes(self, sizes: list[int], by: str) -> None:
        assert all(0.0 <= ratio < 1.0 for ratio in in_turn(OfSeen(by), sizes))

    def test_tasks_at_once_are_none_of_them_old(self) -> None:
        ratio = as_ratio("tasks")
        assert ratio.start(one_memory(3)) == 0.0
        assert ratio.update(shown(4, shares=[0.5, 0.5, 0, 0], seen=[4, 4, 0, 0])) == 0.0
        assert ratio.update(shown(4, shares=[0.3, 0.0, 0.3, 0.4], seen=[4, 4, 2, 1])) == pytest.approx(1 / 3)

    def test_without_shares_it_goes_by_weights(self) -> None:
        ratio = as_ratio("tasks")
        ratio.start(one_memory(2))
        assert ratio.update(shown(3, weights=[0.0, 0.5, 0.5], seen=[4, 4, 2])) == pytest.approx(0.5)

    def test_before_the_first_sample_and_after_the_last(self) -> None:
        ratio = as_ratio("samples")
        ratio.start(one_memory(2, [10, 30]))
        assert ratio.update(shown(3, seen=[0, 0, 0])) == 0.0
        assert ratio.update(shown(3, shares=[0, 0, 1.0], seen=[10, 30, 5])) == pytest.approx(30 / 40)

    def test_streams_of_unknown_size_cannot_be_counted(self) -> None:
        with pytest.raises(ValueError, match=r"\['task 1'\] are iterable.*Use ratio='tasks'"):
            OfSeen("samples").start(one_memory(2, [10, 0]))
        assert OfSeen("tasks").start(one_memory(2, [10, 0])) == 0.0

    def test_another_word_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"ratio must be a number in \[0, 1\), 'tasks', 'samples'.*got 'task'"):
            as_ratio("task")


def test_a_rule_is_taken_as_it_is() -> None:
    rule = Constant(0.2)
    assert as_ratio(rule) is rule
