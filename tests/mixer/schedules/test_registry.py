from typing import Any

import numpy as np
import pytest

from mixer.schedules import Constant, Function, NoiseScale, Ramp, as_schedule
from tests.refusals import refused


def test_schedules_names_functions_numbers_and_nothing_are_schedules() -> None:
    assert [type(as_schedule(name)) for name in ("noise_scale", "NOISE-scale")] == [NoiseScale] * 2
    schedule = Ramp(64, 1e6)
    assert as_schedule(schedule) is schedule
    function = as_schedule(lambda step, batch_size: 24)
    assert isinstance(function, Function)
    assert function.start(16).batch_size == 24
    for given, initial in ((32, 32), (np.int64(32), 32), (None, None)):  # nothing is left to the training arguments
        constant = as_schedule(given)
        assert isinstance(constant, Constant)
        assert constant.is_constant
        assert (constant.initial, type(constant.initial)) == (initial, type(initial))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("rmap", ValueError),
        ("ramp", ValueError),
        (Ramp, TypeError),
        (0, ValueError),
        *[(given, TypeError) for given in (True, 16.0, b"ramp", [16], {"ramp": 1})],
    ],
)
def test_anything_else_is_refused(given: Any, error: type[Exception]) -> None:
    with refused("batch_size", kind=error):
        as_schedule(given)
