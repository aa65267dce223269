"""Classes that are written on the command line and cannot be made: the message says why."""

import json
from typing import Any

import pytest

from mixer.policies.registry import as_policy
from mixer.schedules.registry import as_schedule


def _written(name: str, **arguments: Any) -> str:
    return json.dumps({"class_path": name, "init_args": arguments})


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (_written("ObjectiveDescent", objective="best"), r"^mixing: ObjectiveDescent: objective must be .*'best'"),
        (_written("mixer.PiKE", mode="nope"), r"^mixing: PiKE: mode must be .*'nope'"),
        ("{class_path: Uniform, init_args: {unit: words}}", r"^mixing: Uniform: unit must be 'samples' or 'tokens'"),
        (_written("Uniform", telepathy=1), r"^mixing: Uniform: .*unexpected keyword argument 'telepathy'"),
        (_written("Floor", policy={"class_path": "Uniform", "init_args": {"unit": "w"}}), "^mixing: Uniform: unit"),
        (_written("Unifrom"), r"^mixing: no policy is called 'Unifrom'; there are \['Uniform'"),
        (_written("nowhere.Mine"), "^mixing: no policy is called 'nowhere.Mine'"),
        ('{"math": "two"}', r"^mixing: .* is no policy: write a name, or a class"),
        ("{class_path: [", "^mixing: .* is no policy"),
        (_written("LossChange", beta_fast=[]), "^mixing: "),
    ],
)
def test_a_policy_that_cannot_be_made(written: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_policy(written)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            _written("SmoothedLossChange", maximum=8, on_plateau="jump"),
            r"^batch_size: SmoothedLossChange: .*on_plateau.*'jump'",
        ),
        (_written("AdaBatch", every=1, unit="years"), r"^batch_size: AdaBatch: .*unit.*'years'"),
        (_written("Rmap"), r"^batch_size: no schedule is called 'Rmap'; there are \['Constant'"),
        (_written("Constant", batch_size=None), r"has an argument of the wrong kind; it is Constant\("),
    ],
)
def test_a_schedule_that_cannot_be_made(written: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_schedule(written)
