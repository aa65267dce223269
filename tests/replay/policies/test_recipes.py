"""Policies as recipes and the command line name them."""

from typing import Any

import pytest
from jsonargparse import ArgumentParser

from mixer.policies import Floor, LossChange, PiKE, Policy
from replay.policies import ForgettingAware, OfSeen, OverProgress, ReplayPolicy, ReplayRatio, Spaced


def read(mixing: Any) -> Any:
    """What the `mixing` of a recipe becomes; its type is that of `Recipe.mixing`."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--mixing", type=Policy | dict[str, float] | str | None)
    return parser.instantiate(parser.parse_object({"mixing": mixing})).mixing


def made(name: str, **arguments: Any) -> Any:
    return read({"class_path": name, "init_args": arguments})


@pytest.mark.parametrize("kind", [ReplayRatio, ForgettingAware, Spaced])
def test_by_one_word(kind: type[ReplayPolicy]) -> None:
    assert type(read(kind.__name__)) is kind
    assert type(made(kind.__name__)) is kind


def test_the_inner_policy_is_a_name_weights_or_a_class_with_arguments() -> None:
    assert isinstance(made("ReplayRatio", policy="LossChange").policy, LossChange)
    assert made("Spaced", policy={"math": 1.0, "code": 3.0}).policy.weights == {"math": 1.0, "code": 3.0}
    inner = {"class_path": "PiKE", "init_args": {"interval_steps": 7}}
    wrapped = {"class_path": "Floor", "init_args": {"policy": inner, "minimum": 0.1}}
    policy = made("ForgettingAware", policy=wrapped, additional=True)
    assert policy.additional
    assert isinstance(policy.policy, Floor)
    assert isinstance(policy.policy.policy, PiKE)
    assert policy.interval_steps == 7


def test_the_ratio_is_a_number_a_word_a_course_or_a_rule() -> None:
    assert made("ReplayRatio", ratio=0.25).ratio.value == 0.25
    assert made("ReplayRatio", ratio="samples", shares={"old": 1.0}).ratio.by == "samples"
    course = made("ReplayRatio", ratio=[[0.0, 0.1], [1.0, 0.3]]).ratio
    assert isinstance(course, OverProgress)
    assert course.at(0.5) == pytest.approx(0.2)
    rule = made("ReplayRatio", ratio={"class_path": "replay.policies.OfSeen", "init_args": {"by": "tasks"}}).ratio
    assert isinstance(rule, OfSeen)
