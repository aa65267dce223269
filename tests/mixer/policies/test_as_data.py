import copy
import json
import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mixer.policies import Fixed, Floor, Function, Smoothed, Temperature, Uniform, policy_classes
from mixer.schedules import Ramp
from mixer.utils.recorded_arguments import as_data
from tests.mixer.policies.test_contract import MAKERS

NESTED = Floor(Smoothed(Temperature(2.0), 0.5), minimum=0.1)


def test_a_policy_is_plain_data() -> None:
    for name in MAKERS.keys() - {"Function"}:
        data = as_data(MAKERS[name]())
        assert data["class_path"] == name.partition(",")[0].partition("(")[0]
        assert json.loads(json.dumps(data, allow_nan=False)) == data
        assert "no_data" not in json.dumps(data)


def test_policies_that_take_nothing_are_their_name() -> None:
    described = []
    for name, kind in policy_classes().items():
        try:
            policy = kind()
        except (TypeError, ValueError):
            continue  # it needs arguments
        assert as_data(policy) == {"class_path": name, "init_args": {}}
        described.append(name)
    assert len(described) > 15


def test_arguments_are_named_however_they_were_given_also_of_copies() -> None:
    temperature = {"class_path": "Temperature", "init_args": {"temperature": 2.0}}
    smoothed = {"class_path": "Smoothed", "init_args": {"policy": temperature, "decay": 0.5}}
    for policy in (NESTED, copy.copy(NESTED), copy.deepcopy(NESTED), pickle.loads(pickle.dumps(NESTED))):  # noqa: S301
        assert as_data(policy) == {"class_path": "Floor", "init_args": {"policy": smoothed, "minimum": 0.1}}
    assert as_data(Ramp(64, over=1e6, initial=8))["init_args"] == {"final": 64, "over": 1e6, "initial": 8}


def test_arrays_and_numbers_of_numpy_are_plain() -> None:
    data = as_data({"a": np.float64(0.5), "b": np.arange(3), "c": (1, "x", None)})
    assert json.loads(json.dumps(data)) == {"a": 0.5, "b": [0, 1, 2], "c": [1, "x", None]}


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_has_not_are_kept(number: float) -> None:
    data = json.loads(json.dumps(as_data([number, np.array([number, 1.0])]), allow_nan=False))
    assert data == [{"float": str(number)}, [{"float": str(number)}, 1.0]]


def test_what_is_changed_afterwards_is_as_it_was_given() -> None:
    weights = {"a": 1.0, "b": 2.0}
    policy = Fixed(weights)
    weights["a"] = 5.0
    assert as_data(policy)["init_args"] == {"weights": {"a": 1.0, "b": 2.0}}


class _Own(Uniform):
    def __init__(self, *given: object, **named: object):
        super().__init__()


@dataclass(frozen=True)
class _Frozen(Uniform):
    power: float = 2.0


class _MadeByNew(Uniform):
    def __init__(self, power: float):
        super().__init__()

    @classmethod
    def make(cls) -> "_MadeByNew":
        made = cls.__new__(cls)
        Uniform.__init__(made)
        return made


_ENDLESS: list[Any] = [1]
_ENDLESS.append(_ENDLESS)
_GIVEN = [
    np.array([object()]),
    np.array([1j]),
    np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.zeros(1_000_000),
    [0.0] * 100_000,
    _ENDLESS,
    {1: {2, 3}},
]


def test_whatever_a_policy_is_given_a_run_is_described_in_few_bytes() -> None:
    import torch

    for policy in [*map(_Own, _GIVEN), _Own(torch.zeros(2)), _MadeByNew.make()]:
        text = json.dumps(as_data(policy), allow_nan=False)
        assert len(text) < 1_000
        assert '"no_data"' in text


def test_frozen_policies_are_described_and_functions_noted_by_their_name() -> None:
    assert as_data(_Frozen(power=3.0))["init_args"] == {"power": 3.0}
    data = as_data(Function(lambda step, weights: weights))
    assert "<lambda>" in data["init_args"]["function"]["no_data"]
