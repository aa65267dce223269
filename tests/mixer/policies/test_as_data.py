import copy
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import mixer
from mixer.policies import Policy, policy_classes
from mixer.utils.recorded_arguments import as_data
from tests.mixer.trainer.test_every_policy_trains import MAKERS

NESTED = mixer.Floor(mixer.Smoothed(mixer.Temperature(2.0), 0.5), minimum=0.1)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "Function"])
def test_a_policy_is_plain_data(name: str) -> None:
    data = as_data(MAKERS[name]())
    assert data["class_path"] == name
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert "no_data" not in json.dumps(data)


@pytest.mark.parametrize("name", sorted(policy_classes()))
def test_policies_that_take_nothing_are_their_name(name: str) -> None:
    try:
        policy = policy_classes()[name]()
    except (TypeError, ValueError):
        pytest.skip("it needs arguments")
    assert as_data(policy) == {"class_path": name, "init_args": {}}


def test_arguments_are_named_however_they_were_given() -> None:
    temperature = {"class_path": "Temperature", "init_args": {"temperature": 2.0}}
    smoothed = {"class_path": "Smoothed", "init_args": {"policy": temperature, "decay": 0.5}}
    assert as_data(NESTED) == {"class_path": "Floor", "init_args": {"policy": smoothed, "minimum": 0.1}}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])  # noqa: S301
def test_copies_know_it_too(copied: Callable[[Policy], Policy]) -> None:
    assert as_data(copied(NESTED)) == as_data(NESTED)


def test_bounds_of_a_schedule_are_arguments_like_others() -> None:
    data = as_data(mixer.schedules.Ramp(64, over=1e6, initial=8, granularity=4))
    assert data["init_args"] == {"final": 64, "over": 1e6, "initial": 8, "granularity": 4}


def test_arrays_and_numbers_of_numpy_are_plain() -> None:
    data = as_data({"a": np.float64(0.5), "b": np.arange(3), "c": (1, "x", None)})
    assert json.loads(json.dumps(data)) == {"a": 0.5, "b": [0, 1, 2], "c": [1, "x", None]}


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_has_not_are_kept(number: float) -> None:
    data = json.loads(json.dumps(as_data([number, np.array([number, 1.0])]), allow_nan=False))
    assert data == [{"float": str(number)}, [{"float": str(number)}, 1.0]]
    assert as_data(mixer.Temperature(math.inf))["init_args"] == {"temperature": {"float": "inf"}}


def test_what_is_changed_afterwards_is_as_it_was_given() -> None:
    weights = {"a": 1.0, "b": 2.0}
    policy = mixer.Fixed(weights)
    weights["a"] = 5.0
    assert as_data(policy)["init_args"] == {"weights": {"a": 1.0, "b": 2.0}}


class _Own(mixer.Uniform):
    def __init__(self, *given: object, **named: object):
        super().__init__()


@dataclass(frozen=True)
class _Frozen(mixer.Uniform):
    power: float = 2.0


class _MadeByNew(mixer.Uniform):
    def __init__(self, power: float):
        super().__init__()

    @classmethod
    def make(cls) -> "_MadeByNew":
        made = cls.__new__(cls)
        mixer.Uniform.__init__(made)
        return made


def _endless() -> list[object]:
    content: list[object] = [1]
    content.append(content)
    return content


@pytest.mark.parametrize(
    "policy",
    [
        _Own(np.array([object()])),
        _Own(np.array([1j])),
        _Own(np.array(["2020-01-01"], dtype="datetime64[D]")),
        _Own(np.zeros(1_000_000)),
        _Own([0.0] * 100_000),
        _Own(_endless()),
        _Own(torch.zeros(2)),
        _Own({1: {2, 3}}),
        _MadeByNew.make(),
    ],
    ids=lambda policy: "",
)
def test_whatever_a_policy_is_given_a_run_is_described_in_few_bytes(policy: Policy) -> None:
    text = json.dumps(as_data(policy), allow_nan=False)
    assert len(text) < 1_000
    assert '"no_data"' in text


def test_frozen_policies_are_described() -> None:
    assert as_data(_Frozen(power=3.0))["init_args"] == {"power": 3.0}


def test_a_function_is_noted_by_its_name() -> None:
    data = as_data(mixer.Function(lambda step, weights: weights))
    assert "<lambda>" in data["init_args"]["function"]["no_data"]
