"""Whether what is said to be remembered has the form of what a rule remembers."""

from typing import Any

import numpy as np
import pytest

from mixer.mixture.state import arrays_of, check_form, is_known
from mixer.policies import Floor, Function, GroupDRO, LossChange
from mixer.policies.contract import Decision, Mixture, Observation, Policy


class Own(Policy):
    """A policy of a user's own."""

    def start(self, mixture: Mixture) -> Decision:
        return Decision(np.full(len(mixture.names), 1 / len(mixture.names)))

    def update(self, observation: Observation) -> Decision:
        raise NotImplementedError


class TestForm:
    @pytest.mark.parametrize(
        ("saved", "own"),
        [
            (1, 0.5),
            (0.5, 1),
            ([1.0, 2], [0.0]),
            ([], [0.0]),
            ((1,), [0]),
            (["x"], []),
            ({"a": {"b": [True]}}, {"a": {"b": [False]}}),
            (3, None),
            ({"a": "x"}, {"a": None}),
        ],
    )
    def test_the_same_form_is_taken(self, saved: Any, own: Any) -> None:
        check_form(saved, own, "it")

    @pytest.mark.parametrize(
        ("saved", "own", "said"),
        [
            ("1", 1, "it must be a number, but str '1' was saved"),
            (True, 1, "it must be a number, but bool True was saved"),
            (None, 1.0, "it must be a number, but nothing was saved"),
            ([1], 1.0, r"it must be a number, but list \[1\] was saved"),
            (1, True, "it must be bool True, but int 1 was saved"),
            (1, "a", "it must be str 'a', but int 1 was saved"),
            (1.0, [1.0], "it must be a list, but float 1.0 was saved"),
            ("ab", [1.0], "it must be a list, but str 'ab' was saved"),
            ({}, [1.0], "it must be a list, but dict {} was saved"),
            ([1.0, "x"], [0.0], r"it\[1\] must be a number, but str 'x'"),
            ([[1.0], 2.0], [[0.0]], r"it\[1\] must be a list, but float 2.0"),
            ([1], {"a": 1}, r"it has the state \['a'\], but the saved state has list \[1\]"),
            ({}, {"a": 1}, r"it has the state \['a'\], but the saved state has \[\]"),
            ({"a": 1, "b": 2}, {"a": 1}, r"it has the state \['a'\], but the saved state has \['a', 'b'\]"),
            ({"a": {"b": ["x"]}}, {"a": {"b": [1]}}, r"it: a: b\[0\] must be a number"),
            ("x" * 10_000, 1, "it must be a number, but str 'x{79}… was saved"),
        ],
    )
    def test_another_form_is_refused_with_its_place(self, saved: Any, own: Any, said: str) -> None:
        with pytest.raises(ValueError, match=f"^{said}"):
            check_form(saved, own, "it")


class TestWhoseRule:
    def test_of_a_rule_of_ours_it_is_known_what_it_remembers(self) -> None:
        assert is_known(LossChange())
        assert is_known(Floor(Floor(GroupDRO(), 0.1), 0.1))

    def test_of_a_users_own_it_is_not_however_it_is_wrapped(self) -> None:
        assert not is_known(Own())
        assert not is_known(Floor(Floor(Own(), 0.1), 0.1))


def test_arrays_that_have_a_place_for_each_stream_are_found_in_what_is_wrapped() -> None:
    policy = Floor(Own(), 0.1)
    policy.start(Mixture(("a", "b", "c"), np.array([10, 20, 30]), np.full(3, np.nan)))
    inner = LossChange()
    inner.memory, inner.other, inner.single = np.zeros((3, 2)), np.zeros(4), np.array(1.0)  # type: ignore[attr-defined]
    policy.policy = inner
    found = arrays_of(policy, 3)
    assert found["policy.memory"] == (3,)
    assert not {"policy.other", "policy.single"} & set(found)


def test_what_refers_to_itself_comes_to_an_end() -> None:
    policy = LossChange()
    policy.policy = policy  # type: ignore[attr-defined]
    policy.memory = np.zeros(3)  # type: ignore[attr-defined]
    assert arrays_of(policy, 3)["memory"] == (3,)


def test_functions_are_known() -> None:
    assert is_known(Function(lambda step, weights: [1.0]))
