import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from mixer.analysis.report.clocked import buckets, thin


def rows_of(values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"epoch": np.linspace(0, 3, len(values)) ** 2, "loss": values})


class TestThin:
    @given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(4, 50))
    def test_ends_and_extremes_stay_in_order(self, values: list[float], most: int) -> None:
        rows = rows_of(np.array(values))
        kept = thin(rows, "loss", most)
        assert len(kept) <= most
        assert kept.index.is_monotonic_increasing
        assert {0, len(values) - 1} <= set(kept.index)
        assert (kept["loss"].min(), kept["loss"].max()) == (min(values), max(values))

    def test_every_stretch_keeps_its_spike(self) -> None:
        values = np.zeros(100_000)
        values[[20_000, 70_000]] = 5.0, -5.0
        kept = thin(rows_of(values), "loss", 100)
        assert {20_000, 70_000} <= set(kept.index)


class TestBuckets:
    def test_few_steps_have_one_each(self) -> None:
        assert buckets(np.array([0.1, 0.1, 0.5]), 3).tolist() == [0, 1, 2]

    def test_stretches_are_of_one_length(self) -> None:
        assert buckets(np.array([0.0, 0.1, 0.4, 0.6, 1.0]), 2).tolist() == [0, 0, 0, 1, 1]

    def test_a_clock_that_stands_still_is_one_stretch(self) -> None:
        assert buckets(np.zeros(5), 2).tolist() == [0] * 5
