from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser

from mixer.policies import Policy
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


@pytest.mark.parametrize("value", [0, 0.1, 0.999, np.float64(0.5)])
def test_a_constant_holds(value: float) -> None:
    ratio = as_ratio(value)
    assert ratio.is_constant
    assert ratio.start(one_memory()) == ratio.update(shown(3, progress=0.7)) == float(value)
    assert as_ratio(ratio) is ratio


def test_a_course_is_linear_between_points_and_constant_outside() -> None:
    ratio = as_ratio([(0.2, 0.1), (0.6, 0.5)])
    assert not ratio.is_constant
    assert ratio.start(one_memory()) == pytest.approx(0.1)
    found = [ratio.update(shown(3, progress=at)) for at in (0.1, 0.2, 0.3, 0.4, 0.6, 1.0)]
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.5, 0.5])


def test_a_function_of_progress() -> None:
    ratio = as_ratio(lambda progress: 0.4 * progress)
    assert ratio.start(one_memory()) == 0.0
    assert ratio.update(shown(3, progress=0.5)) == pytest.approx(0.2)
    with pytest.raises(ValueError, match=r"ratio at progress 0.5 must be a number in \[0, 1\), got 1.0"):
        OverProgress(lambda progress: 2 * progress).update(shown(3, progress=0.5))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((value, r"ratio.*\[0, 1\)|ratio.*list of \(progress, ratio\)") for value in (1.0, -0.1, np.nan, True, None)),
        (b"0.1", r"ratio.*list of \(progress, ratio\)"),
        (1.5, r"got 1\.5: it is the part of the whole mix that is replayed"),
        ("task", r"ratio must be a number in \[0, 1\), 'tasks', 'samples'.*got 'task'"),
        *((points, r"ratio: .*progress") for points in ([], [(0.5, 0.1), (0.5, 0.2)], [(0.6, 0.1), (0.5, 0.2)])),
        *((points, r"ratio: .*progress") for points in ([(-0.1, 0.1)], [(1.1, 0.1)], [0.1, 0.2])),
        ([(0.0, 0.1), (1.0, 1.0)], r"ratio at progress 1 must be a number in \[0, 1\), got 1.0"),
    ],
)
def test_what_is_no_ratio_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_ratio(value)


def test_old_tasks_or_samples_get_their_part_of_those_seen() -> None:
    assert in_turn(OfSeen("tasks"), [10, 70, 20]) == pytest.approx([0, 1 / 2, 2 / 3])
    assert in_turn(OfSeen("samples"), [10, 70, 20]) == pytest.approx([0, 10 / 80, 80 / 100])


@given(sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=8), by=st.sampled_from(["tasks", "samples"]))
def test_it_is_a_ratio_whatever_the_sizes(sizes: list[int], by: Any) -> None:
    assert all(0.0 <= ratio < 1.0 for ratio in in_turn(OfSeen(by), sizes))


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


def test_streams_of_unknown_size_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match=r"\['task 1'\] are iterable.*Use ratio='tasks'"):
        OfSeen("samples").start(one_memory(2, [10, 0]))
    assert Constant(0.2).at(0.5) == 0.2


def made(name: str, **arguments: Any) -> Any:
    """What the `mixing` of a recipe becomes; its type is that of `Recipe.mixing`."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--mixing", type=Policy | dict[str, float] | str | None)
    return parser.instantiate(parser.parse_object({"mixing": {"class_path": name, "init_args": arguments}})).mixing


def test_recipes_name_inner_policies_and_ratios() -> None:
    inner = {"class_path": "Floor", "init_args": {"policy": "PiKE", "minimum": 0.1}}
    assert made("ForgettingAware", policy=inner, additional=True).name == "ForgettingAware(Floor(PiKE))"
    assert made("Spaced", policy={"math": 1.0, "code": 3.0}).policy.weights == {"math": 1.0, "code": 3.0}
    assert made("ReplayRatio", ratio=0.25).ratio.value == 0.25
    assert made("ReplayRatio", ratio="samples", shares={"old": 1.0}).ratio.by == "samples"
    assert made("ReplayRatio", ratio=[[0.0, 0.1], [1.0, 0.3]]).ratio.at(0.5) == pytest.approx(0.2)
    rule = {"class_path": "replay.policies.OfSeen", "init_args": {"by": "tasks"}}
    assert made("ReplayRatio", ratio=rule).ratio.by == "tasks"
