import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies.shared.stream_average import StreamAverage

values = st.one_of(st.floats(-10.0, 10.0), st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1.7e308]))


def averaged(decay: float, rows: list[list[float]]) -> StreamAverage:
    average = StreamAverage(decay)
    average.start(2)
    for row in rows:
        average.take(np.array(row))
    return average


@pytest.mark.parametrize(
    ("decay", "rows", "expected"),
    [
        # Weights of the values from old to new are 1/4, 1/2, 1 over their sum: (4/4 + 8/2 + 1)/(7/4) = 24/7; the
        # second stream has two values: (6/2 + 3)/(3/2) = 4.
        (0.5, [[4.0, 6.0], [8.0, np.nan], [1.0, 3.0]], [24 / 7, 4.0]),
        (0.5, [[1.0, np.inf]], [1.0, np.nan]),
        (0.0, [[1.0, 2.0], [3.0, np.nan]], [3.0, 2.0]),
    ],
)
def test_by_hand(decay: float, rows: list[list[float]], expected: list[float]) -> None:
    np.testing.assert_allclose(averaged(decay, rows).values, expected)


@given(rows=st.lists(st.lists(values, min_size=2, max_size=2), max_size=8), decay=st.floats(0.0, 0.999))
def test_it_lies_between_the_values_and_is_saved_exactly(rows: list[list[float]], decay: float) -> None:
    average = averaged(decay, rows)
    for k, found in enumerate(average.values):
        taken = [row[k] for row in rows if np.isfinite(row[k])]
        if taken:
            assert min(taken) - 1e-12 * abs(min(taken)) <= found <= max(taken) + 1e-12 * abs(max(taken))
        else:
            assert np.isnan(found)
    resumed = StreamAverage(decay)
    resumed.load_state_dict(json.loads(json.dumps(average.state_dict(), allow_nan=False)))
    for one in (average, resumed):
        one.take(np.array([1.0, 2.0]))
    np.testing.assert_array_equal(resumed.values, average.values)
