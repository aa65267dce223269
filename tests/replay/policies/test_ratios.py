from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from jsonargparse import ArgumentParser

from mixer.policies import Policy
from replay.policies import OfSeen, OverProgress, as_ratio
from tests.refusals import refused
from tests.replay.policies.updates import one_memory, shown


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
