import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.losses.normalization import CANDIDATES, LossNormalization, predicted, samples_per_item


@pytest.mark.parametrize("world_size", [1, 8])
@pytest.mark.parametrize("one", CANDIDATES, ids=str)
def test_the_divisor_makes_every_form_its_mean_over_the_step_times_ranks(
    one: LossNormalization, world_size: int
) -> None:
    rows, items, num_items, num_rows = np.array([3.0, 9.0]), np.array([2, 4]), 20, 5
    found = predicted(rows, items, num_items, world_size)[CANDIDATES.index(one)]
    counted, own = (num_rows, 2) if one.counts_rows else (num_items, 6)
    total = (rows / items).sum() if one.has_row_means else rows.sum()
    divisor = one.divisor(1 if one.is_plain_sum else counted, own, world_size)
    assert found / divisor == pytest.approx(total * world_size / (1 if one.is_plain_sum else counted))


def test_a_loss_that_is_not_given_the_items_is_a_mean_without_a_factor() -> None:
    assert LossNormalization("items", is_scaled=True).divisor(20, 6, 8, is_given=False) == 20 / (6 * 8)
    assert LossNormalization("item mean", is_scaled=True).divisor(20, 6, 8, is_given=False) == 20 / (6 * 8)


def test_a_stream_or_micro_batch_without_items_counts_for_nothing() -> None:
    assert LossNormalization().divisor(20, 0, 1) == math.inf
    assert samples_per_item(np.array([3, 5]), np.array([3, 5])).tolist() == [1.0, 1.0]
    assert samples_per_item(np.array([3, 5]), np.array([0, 0])).tolist() == [0.0, 0.0]


_STREAMS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.floats(-5, 5)), min_size=1, max_size=6)


@given(_STREAMS)
def test_streams_count_by_their_samples(streams: list[tuple[int, int, float]]) -> None:
    counts, items, means = (np.array(column) for column in zip(*streams, strict=True))
    items = np.where(counts > 0, items, 0)
    factors = samples_per_item(counts, items)
    assert np.isfinite(factors).all()
    assert (factors >= 0).all()
    assert ((factors > 0) == (items > 0)).all()
    by_items = (factors * items / max(items.sum(), 1) * means).sum()
    counted = np.where(items > 0, counts, 0)
    assert by_items == pytest.approx((counted / max(counted.sum(), 1) * means).sum())
