import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from mixer.tools.report.plot import buckets, thin


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(4, 50))
def test_ends_and_extremes_stay_in_order(values: list[float], most: int) -> None:
    rows = pd.DataFrame({"epoch": np.linspace(0, 3, len(values)) ** 2, "loss": values})
    kept = thin(rows, "loss", most)
    assert len(kept) <= most
    assert kept.index.is_monotonic_increasing
    assert {0, len(values) - 1} <= set(kept.index)
    assert (kept["loss"].min(), kept["loss"].max()) == (min(values), max(values))


@pytest.mark.parametrize(
    ("epochs", "found"),
    [([0.1, 0.1, 0.5], [0, 1, 2]), ([0.0, 0.1, 0.4, 0.6, 1.0], [0, 0, 0, 1, 1]), ([0.0] * 5, [0] * 5)],
)
def test_stretches_are_of_one_length_unless_steps_are_few(epochs: list[float], found: list[int]) -> None:
    assert buckets(np.array(epochs), 3 if len(epochs) == 3 else 2).tolist() == found
