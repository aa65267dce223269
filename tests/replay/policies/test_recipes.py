"""Policies as recipes and the command line name them."""

from typing import Any

import pytest
from jsonargparse import ArgumentParser

from mixer.policies import Policy
from replay.policies import OfSeen, OverProgress


def made(name: str, **arguments: Any) -> Any:
    """What the `mixing` of a recipe becomes; its type is that of `Recipe.mixing`."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--mixing", type=Policy | dict[str, float] | str | None)
    mixing = {"class_path": name, "init_args": arguments} if arguments else name
    return parser.instantiate(parser.parse_object({"mixing": mixing})).mixing


def test_the_inner_policy_is_a_name_weights_or_a_class_with_arguments() -> None:
    assert [made(name).name for name in ("ReplayRatio", "Spaced")] == ["ReplayRatio(Fixed)", "Spaced(Fixed)"]
    assert made("Spaced", policy={"math": 1.0, "code": 3.0}).policy.weights == {"math": 1.0, "code": 3.0}
    wrapped = {"class_path": "Floor", "init_args": {"policy": "PiKE", "minimum": 0.1}}
    policy = made("ForgettingAware", policy=wrapped, additional=True)
    assert policy.additional
    assert policy.name == "ForgettingAware(Floor(PiKE))"


def test_the_ratio_is_a_number_a_word_a_course_or_a_rule() -> None:
    assert made("ReplayRatio", ratio=0.25).ratio.value == 0.25
    assert made("ReplayRatio", ratio="samples", shares={"old": 1.0}).ratio.by == "samples"
    course = made("ReplayRatio", ratio=[[0.0, 0.1], [1.0, 0.3]]).ratio
    assert isinstance(course, OverProgress)
    assert course.at(0.5) == pytest.approx(0.2)
    rule = made("ReplayRatio", ratio={"class_path": "replay.policies.OfSeen", "init_args": {"by": "tasks"}}).ratio
    assert isinstance(rule, OfSeen)
