import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from mixer.losses.normalization import Tried, decide, samples_per_item, try_normalization


def _tried(form: str, world_size: int, rows: bool = True, micro_items: int = 6, other: float = 0.0) -> list[Tried]:
    """A loss whose item losses sum to 12, normalised in one of the forms that trainers and models use."""
    total = torch.tensor(12.0)
    losses = {
        "sum over items times ranks": lambda count, ranks: total * ranks / count,
        "sum over items": lambda count, ranks: total / count,
        "mean": lambda count, ranks: total / micro_items,
        "mean times ranks": lambda count, ranks: total * ranks / micro_items,
    }
    seen = try_normalization(
        lambda count, averages: losses[form](count, world_size if averages else 1) + other,
        lambda: total / 3 * torch.ones(3) if rows else None,
        num_items=20,
        micro_items=micro_items,
        world_size=world_size,
    )
    return [] if seen is None else [seen]


@pytest.mark.parametrize(("rows", "world_size"), itertools.product([True, False], [1, 8]))
@pytest.mark.parametrize("form", ["sum over items times ranks", "sum over items", "mean", "mean times ranks"])
def test_the_divisor_makes_every_form_the_sum_times_ranks_over_items(form: str, rows: bool, world_size: int) -> None:
    normalization = decide(_tried(form, world_size, rows), world_size)
    assert normalization is not None
    # What the loss will be in training: a mean is asked for without the item count, and then has no factor.
    factor = world_size if form == "sum over items times ranks" else 1
    loss = 12.0 / 6 if form.startswith("mean") else 12.0 * factor / 20
    assert loss / normalization.divisor(20, 6, world_size) == pytest.approx(12.0 * world_size / 20)
    assert normalization.rows_known is rows


def test_a_small_other_part_is_no_reason_to_split_by_stream() -> None:
    assert decide(_tried("mean", 1, other=0.05), 1).rows_known  # type: ignore[union-attr]
    assert not decide(_tried("mean", 1, other=2.0), 1).rows_known  # type: ignore[union-attr]


@pytest.mark.parametrize("other", [math.nan, math.inf, -2.0])
def test_a_loss_that_is_zero_or_not_finite_says_nothing(other: float) -> None:
    assert decide(_tried("mean", 1, other=other), 1) is None


def test_a_rank_or_micro_batch_without_items_counts_for_nothing() -> None:
    normalization = decide(_tried("mean", 1), 1)
    assert normalization is not None
    assert normalization.divisor(20, 0, 1) == math.inf
    assert decide([*_tried("mean", 2, micro_items=0), *_tried("mean", 2)], 2) == decide(_tried("mean", 2), 2)
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
