import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from mixer.gradients.records import gradient_entries
from mixer.measurements.gradients import GradientStatistics
from tests.mixer.made_measurements import measured

NAMES = ("math", "code", "chat")


def test_what_is_said_of_three_streams() -> None:
    statistics = replace(measured(), squared_norm=np.array([4.0, 0.25, 1.0]), variance=np.array([8.0, 8.0, 3.0]))
    signal, noise = statistics.noise
    assert signal > 0
    assert gradient_entries(NAMES, statistics) == {
        "gradient_norm/math": 2.0,
        "gradient_norm/code": 0.5,
        "gradient_norm/chat": 1.0,
        "gradient_noise/math": 2.0,
        "gradient_noise/code": 32.0,
        "gradient_noise/chat": 3.0,
        "gradient_cosine/math/code": statistics.cosines[0, 1],
        "gradient_cosine/math/chat": statistics.cosines[0, 2],
        "gradient_cosine/code/chat": statistics.cosines[1, 2],
        "gradient_noise_scale": noise / signal,
    }


def test_what_is_not_known_or_below_the_noise_is_left_out() -> None:
    entries = gradient_entries(NAMES, measured(missing=(1,)))
    assert [name for name in entries if "code" in name] == []
    assert "gradient_cosine/math/chat" in entries
    assert entries["gradient_noise_scale"] > 0
    entries = gradient_entries(NAMES, replace(measured(), squared_norm=np.array([-1.0, 0.0, 1.0])))
    assert [name for name in entries if name.startswith("gradient_norm/")] == ["gradient_norm/chat"]
    assert [name for name in entries if name.startswith("gradient_noise/")] == ["gradient_noise/chat"]
    assert "gradient_noise_scale" not in gradient_entries(NAMES, replace(measured(), variance=np.full(3, 1e6)))
    assert not [name for name in gradient_entries("abcde", measured(5, missing=(0, 1, 2, 3))) if "cosine" in name]


@pytest.mark.parametrize(("num_streams", "num_entries"), [(1, 0), (2, 1), (4, 6), (5, 2), (40, 2)])
def test_cosines_of_many_pairs_are_summed_up(num_streams: int, num_entries: int) -> None:
    statistics = measured(num_streams)
    entries = gradient_entries([*map(str, range(num_streams))], statistics)
    said = {name: value for name, value in entries.items() if name.startswith("gradient_cosine/")}
    assert len(said) == num_entries
    if num_streams > 4:
        cosines = statistics.cosines[np.triu_indices(num_streams, 1)]
        assert said == {"gradient_cosine/min": cosines.min(), "gradient_cosine/mean": cosines.mean()}


@given(data=st.data(), num_streams=st.integers(1, 6))
def test_whatever_was_measured_all_entries_are_finite_and_of_json(data: st.DataObject, num_streams: int) -> None:
    def numbers(*shape: int) -> Any:
        return data.draw(arrays.arrays(np.float64, shape, elements=st.floats(-1e9, 1e9) | st.just(np.nan)))

    gram = numbers(num_streams, num_streams)
    np.fill_diagonal(gram, np.abs(np.diagonal(gram)))
    variance, squared_norm, shares = (numbers(num_streams) for _ in range(3))
    counts = data.draw(arrays.arrays(np.int64, num_streams, elements=st.integers(0, 9)))
    statistics = GradientStatistics(gram, variance, squared_norm, counts, shares, np.zeros_like(gram))
    entries = gradient_entries([str(place) for place in range(num_streams)], statistics)
    assert json.loads(json.dumps(entries, allow_nan=False)) == entries
    assert all(type(value) is float and math.isfinite(value) for value in entries.values())
