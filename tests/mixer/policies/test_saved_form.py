"""Whether what is said to be remembered has the form of what a rule remembers."""

from typing import Any

import numpy as np
import pytest

from mixer.policies import Floor, Function, GroupDRO, LossChange
from mixer.utils.saved_state import arrays_of, check_form, is_known
from tests.mixer.policies.observed import Told, mixture
from tests.refusals import refused


def test_the_same_form_is_taken() -> None:
    for saved, own in ((1, 0.5), ([1.0, 2], [0.0]), ([], [0.0]), ((1,), [0]), (["x"], []), (3, None)):
        check_form({"a": {"b": saved}}, {"a": {"b": own}}, "it")


@pytest.mark.parametrize(
    ("saved", "own", "option"),
    [
        ("1", 1, "it"),
        (1, "a", "it"),
        ([1.0, "x"], [0.0], "it[1]"),
        ({"a": 1, "b": 2}, {"a": 1}, "it"),
        ({"a": {"b": ["x"]}}, {"a": {"b": [1]}}, "it: a: b[0]"),
        ("x" * 10_000, 1, "it"),
    ],
)
def test_another_form_is_refused_with_its_place(saved: Any, own: Any, option: str) -> None:
    with refused(option):
        check_form(saved, own, "it")


def test_of_a_rule_of_ours_it_is_known_what_it_remembers_but_not_of_a_users_own_however_it_is_wrapped() -> None:
    for policy in (LossChange(), Floor(Floor(GroupDRO(), 0.1), 0.1), Function(lambda step, weights: [1.0])):
        assert is_known(policy)
    assert not is_known(Told())
    assert not is_known(Floor(Floor(Told(), 0.1), 0.1))


def test_arrays_that_have_a_place_for_each_stream_are_found_in_what_is_wrapped() -> None:
    policy, inner = Floor(Told([1, 1, 1]), 0.1), LossChange()
    policy.start(mixture([1, 1, 1]))
    inner.memory, inner.other, inner.single = np.zeros((3, 2)), np.zeros(4), np.array(1.0)  # type: ignore[attr-defined]
    inner.policy = inner  # type: ignore[attr-defined] # what refers to itself comes to an end
    policy.policy = inner
    found = arrays_of(policy, 3)
    assert found["policy.memory"] == (3,)
    assert not {"policy.other", "policy.single"} & set(found)
