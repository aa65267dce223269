import copy
import json
import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from mixer.policies import Fixed, Floor, Function, Smoothed, Temperature, Uniform
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
    assert as_data(Uniform()) == {"class_path": "Uniform", "init_args": {}}


def test_arguments_are_named_however_they_were_given_also_of_copies() -> None:
    temperature = {"class_path": "Temperature", "init_args": {"temperature": 2.0}}
    smoothed = {"class_path": "Smoothed", "init_args": {"policy": temperature, "decay": 0.5}}
    for policy in (NESTED, copy.copy(NESTED), copy.deepcopy(NESTED), pickle.loads(pickle.dumps(NESTED))):  # noqa: S301
        assert as_data(policy) == {"class_path": "Floor", "init_args": {"policy": smoothed, "minimum": 0.1}}
    assert as_data(Ramp(64, over=1e6, initial=8))["init_args"] == {"final": 64, "over": 1e6, "initial": 8}


def test_numbers_of_numpy_and_those_that_json_has_not_are_kept_as_they_were_given() -> None:
    data = as_data({"a": np.float64(0.5), "b": np.arange(3), "c": (1, "x", None)})
    assert json.loads(json.dumps(data)) == {"a": 0.5, "b": [0, 1, 2], "c": [1, "x", None]}
    given = [-math.inf, np.array([math.nan, 1.0])]
    assert json.loads(json.dumps(as_data(given), allow_nan=False)) == [{"float": "-inf"}, [{"float": "nan"}, 1.0]]
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


_ENDLESS: list[Any] = [1]
_ENDLESS.append(_ENDLESS)
_GIVEN = [np.array([object()]), np.array([1j]), np.zeros(1_000_000), [0.0] * 100_000, _ENDLESS, {1: {2, 3}}]


def test_whatever_a_policy_is_given_a_run_is_described_in_few_bytes() -> None:
    import torch

    for policy in map(_Own, [*_GIVEN, torch.zeros(2)]):
        text = json.dumps(as_data(policy), allow_nan=False)
        assert len(text) < 1_000
        assert '"no_data"' in text
    assert as_data(_Frozen(power=3.0))["init_args"] == {"power": 3.0}
    data = as_data(Function(lambda step, weights: weights))
    assert "<lambda>" in data["init_args"]["function"]["no_data"]
