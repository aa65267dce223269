from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from jsonargparse import ArgumentParser

from mixer.policies import Fixed, LossChange, Mixture, Policy, Scheduled
from replay.policies import OfSeen, OverProgress, ReplayRatio, as_ratio
from tests.refusals import refused
from tests.replay.policies.updates import MEMORIES, MIXED, OTHERS, one_memory, shown


@given(ratio=st.floats(0, 0.999999), first=st.floats(0.01, 10))
def test_replayed_samples_are_in_proportion_to_new_ones_on_top_too(ratio: float, first: float) -> None:
    shares = {"early": first, "late": 1}
    weights = ReplayRatio(ratio, shares=shares).start(MIXED).weights
    on_top = ReplayRatio(ratio, shares=shares, additional=True).start(MIXED)
    for replayed, new in ((weights, weights[OTHERS]), (on_top.additional, on_top.weights)):
        assert replayed[MEMORIES].sum() == pytest.approx(ratio / (1 - ratio) * new.sum())
        assert replayed[0] == pytest.approx(first * replayed[2])


def test_streams_that_are_not_there_do_not_count() -> None:
    policy = ReplayRatio(0.5, Fixed())
    weights = policy.start(one_memory(4)).weights
    shares = np.array([0.2, 0, 0, 0, 0.8])  # what the planner makes of the first decision for the first task
    weights = policy.update(shown(5, weights=weights, shares=shares)).weights
    np.testing.assert_allclose(weights, weights[0])
    left = ReplayRatio(0.4, Fixed())
    weights = left.start(one_memory(2)).weights
    later = left.update(shown(3, weights=weights, shares=[0, 0, 1.0])).weights
    assert later[2] == pytest.approx(0.4)  # with nothing new left, memories go on


def test_an_empty_memory_leaves_its_part_to_the_other() -> None:
    policy, there = ReplayRatio(0.4, Fixed()), [True, True, False, True, True]
    weights = policy.start(MIXED).weights
    shares = np.where(there, weights, 0.0)
    later = policy.update(shown(5, weights=weights, shares=shares / shares.sum())).weights
    drawn = np.where(there, later, 0.0)
    assert drawn[0] / drawn.sum() == pytest.approx(0.4)
    assert later[2] > 0  # or it could never be seen to be there
    on_top = ReplayRatio(0.5, additional=True)
    weights = on_top.start(MIXED).weights
    for is_there, expected in ((True, [1.0, 0.5]), (False, [0.5, 0.5])):
        step = shown(5, weights=weights, shares=weights, active=[is_there, True, False, True, True])
        assert on_top.update(step).additional[[0, 2]].tolist() == expected


def test_a_stream_that_was_asked_for_nothing_counts_as_there() -> None:
    steps = [(0.0, {"task 0": 1, "task 1": 0}), (0.5, {"task 0": 1, "task 1": 3})]
    policy = ReplayRatio(0.4, Scheduled(steps, "step"))
    weights = policy.start(one_memory(2)).weights
    later = policy.update(shown(3, weights=weights, shares=weights, active=[True] * 3, progress=0.5)).weights
    np.testing.assert_allclose(later, [0.15, 0.45, 0.4])


@pytest.mark.parametrize(
    ("make", "mixture", "expected"),
    [
        (lambda: ReplayRatio(0.2), one_memory(1), True),
        (lambda: ReplayRatio(0.2, additional=True), one_memory(3), True),
        (lambda: ReplayRatio(0.2), one_memory(3), False),  # tasks may come and go
        (lambda: ReplayRatio("tasks"), one_memory(1), False),
        (lambda: ReplayRatio([(0.0, 0.2)]), one_memory(1), False),
        (lambda: ReplayRatio(0.2, LossChange()), one_memory(1), False),
        (lambda: ReplayRatio(0.2, additional=True), MIXED, False),  # memories fill one by one
    ],
)
def test_it_is_asked_again_if_it_can_change(make: Callable[[], ReplayRatio], mixture: Mixture, expected: bool) -> None:
    policy = make()
    first = policy.start(mixture)
    assert policy.is_static is expected
    if expected:  # it would decide the same again
        again = policy.update(shown(len(mixture.names), weights=first.weights, shares=first.weights))
        np.testing.assert_array_equal(again.weights, first.weights)


def test_wrong_shares_are_refused() -> None:
    for own in ({"early": 1}, {"early": 0, "late": 0}):
        with pytest.raises(ValueError, match=r"ReplayRatio\.shares"):
            ReplayRatio(shares=own).start(MIXED)


def in_turn(ratio: OfSeen, sizes: list[int]) -> list[float]:
    """Ratios while each of the streams is there alone, one after the other."""
    ratio.start(one_memory(len(sizes), sizes))
    found = []
    for k in range(len(sizes)):
        shares = [0.5 * (j == k) for j in range(len(sizes))]
        seen = [*sizes[: k + 1], *[0] * (len(sizes) - k - 1)]
        found.append(ratio.update(shown(len(sizes) + 1, shares=[*shares, 0.5], seen=[*seen, 3])))
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, [value] * 7) for value in (0, 0.1, 0.999, np.float64(0.5))),
        ([(0.2, 0.1), (0.6, 0.5)], [0.1, 0.1, 0.1, 0.2, 0.3, 0.5, 0.5]),  # linear between, and constant outside
        (lambda progress: 0.4 * progress, [0.0, 0.04, 0.08, 0.12, 0.16, 0.24, 0.4]),
    ],
)
def test_ratios_go_by_progress(value: Any, expected: list[float]) -> None:
    ratio = as_ratio(value)
    assert ratio.is_constant == (expected[0] == expected[-1])
    found = [ratio.update(shown(3, progress=at)) for at in (0.1, 0.2, 0.3, 0.4, 0.6, 1.0)]
    assert [ratio.start(one_memory()), *found] == pytest.approx(expected)
    assert as_ratio(ratio) is ratio


@pytest.mark.parametrize(
    ("value", "option"),
    [
        *((value, "ratio") for value in (1.0, -0.1, np.nan, True, None, "task")),
        *((points, "ratio") for points in ([], [(0.6, 0.1), (0.5, 0.2)], [(1.1, 0.1)], [0.1, 0.2])),
        ([(0.0, 0.1), (1.0, 1.0)], "ratio at progress 1"),
    ],
)
def test_what_is_no_ratio_is_refused(value: Any, option: str) -> None:
    with refused(option):
        as_ratio(value)


@given(sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=8), by=st.sampled_from(["tasks", "samples"]))
def test_old_tasks_or_samples_get_their_part_of_those_seen(sizes: list[int], by: Any) -> None:
    old = range(len(sizes)) if by == "tasks" else [sum(sizes[:k]) for k in range(len(sizes))]
    whole = [k + 1 if by == "tasks" else old[k] + sizes[k] for k in range(len(sizes))]
    assert in_turn(OfSeen(by), sizes) == pytest.approx([a / b for a, b in zip(old, whole, strict=True)])


@pytest.mark.parametrize(
    ("by", "sizes", "fields", "expected"),
    [
        ("tasks", [9, 9, 9], {"shares": [0.5, 0.5, 0, 0], "seen": [4, 4, 0, 0]}, 0.0),  # none of those at once is old
        ("tasks", [9, 9, 9], {"shares": [0.3, 0.0, 0.3, 0.4], "seen": [4, 4, 2, 1]}, 1 / 3),
        ("tasks", [9, 9], {"weights": [0.0, 0.5, 0.5], "seen": [4, 4, 2]}, 0.5),  # without shares it goes by weights
        ("tasks", [9, 0], {"seen": [4, 4, 2]}, 0.0),
        ("samples", [10, 30], {"seen": [0, 0, 0]}, 0.0),  # before the first sample
        ("samples", [10, 30], {"shares": [0, 0, 1.0], "seen": [10, 30, 5]}, 30 / 40),  # and after the last
    ],
)
def test_who_is_old(by: Any, sizes: list[int], fields: dict[str, Any], expected: float) -> None:
    ratio = as_ratio(by)
    assert ratio.start(one_memory(len(sizes), sizes)) == 0.0
    assert ratio.update(shown(len(sizes) + 1, **fields)) == pytest.approx(expected)


def test_sizes_and_ratios_that_are_unknown_before_the_run_are_refused_in_it() -> None:
    with refused("ratio", found=["task 1"]):
        OfSeen("samples").start(one_memory(2, [10, 0]))
    with refused("ratio at progress 0.5", found=1.0):
        OverProgress(lambda progress: 2 * progress).update(shown(3, progress=0.5))


def made(name: str, **arguments: Any) -> Any:
    """What the `mixing` of a recipe becomes; its type is that of `Recipe.mixing`."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--mixing", type=Policy | dict[str, float] | str | None)
    return parser.instantiate(parser.parse_object({"mixing": {"class_path": name, "init_args": arguments}})).mixing


def test_recipes_name_inner_policies_and_ratios() -> None:
    inner = {"class_path": "Floor", "init_args": {"policy": "PiKE", "minimum": 0.1}}
    assert made("ReplayBound", policy=inner, additional=True).name == "ReplayBound(Floor(PiKE))"
    assert made("ReplayRatio", policy={"math": 1.0, "code": 3.0}).policy.weights == {"math": 1.0, "code": 3.0}
    rule = {"class_path": "replay.policies.OfSeen", "init_args": {"by": "tasks"}}
    ratios = (0.25, [[0.0, 0.1], [1.0, 0.3]], "samples", rule)
    constant, course, *rules = (made("ReplayRatio", ratio=ratio, shares={"old": 1.0}).ratio for ratio in ratios)
    assert (constant.value, course.at(0.5)) == (0.25, pytest.approx(0.2))
    assert [each.by for each in rules] == ["samples", "tasks"]
