import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, strategies as st
from transformers import default_data_collator

from mixer.losses.normalization import CANDIDATES, LossNormalization, predicted, samples_per_item
from mixer.models.row_losses import RowLossReader, items_per_row, num_rows, tokens_per_row
from tests.helpers import MODEL_DATA, Tokens, build_model

SHIFTS = {"llama": True, "gpt2": True}


def _batch(name: str, num_samples: int = 5) -> dict[str, torch.Tensor]:
    data = Tokens(num_samples, 1, MODEL_DATA[name])
    return default_data_collator([data[index] for index in range(num_samples)])


def _tracked(name: str, model: Any, batch: Any, **options: Any) -> tuple[RowLossReader, Any]:
    """The reader after a forward, and what the model gave."""
    tracker = RowLossReader(model, SHIFTS.get(name, False), **options)
    tracker.attach()
    tracker.listen(batch)
    return tracker, model(**batch)


def _row_losses(name: str, model: Any, batch: Any, **options: Any) -> torch.Tensor:
    rows = _tracked(name, model, batch, **options)[0].take_row_losses()
    assert rows is not None
    return rows


@pytest.mark.parametrize("name", MODEL_DATA)
def test_row_losses_are_those_of_the_rows_alone_whatever_they_are_read_from(name: str) -> None:
    batch, found = _batch(name), []
    num_items = items_per_row(batch, SHIFTS.get(name, False))
    alone = [build_model(name)(**{key: value[row : row + 1] for key, value in batch.items()}).loss for row in range(5)]
    for wrap in (True, False):
        tracker, _ = _tracked(name, build_model(name), batch, wrap_loss_function=wrap)
        rows = tracker.take_row_losses()
        assert rows is not None
        torch.testing.assert_close(rows, (torch.stack(alone) * num_items).detach(), rtol=1e-5, atol=1e-5)
        assert not rows.requires_grad
        found.append(rows)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODEL_DATA)
def test_a_tracked_forward_has_the_gradient_of_an_untracked_one(name: str) -> None:
    plain, model, batch = build_model(name), build_model(name), _batch(name)
    plain(**batch).loss.backward()
    _tracked(name, model, batch)[1].loss.backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, theirs.grad)


def test_only_the_last_forward_that_was_listened_to_is_told() -> None:
    model, batch = build_model("llama"), _batch("llama")
    tracker = RowLossReader(model, True)
    tracker.attach()
    model(**batch)
    assert tracker.take_row_losses() is None
    tracker.listen(batch)
    model(**batch)
    assert tracker.take_row_losses() is not None
    tracker.listen(batch)
    assert tracker.take_row_losses() is None


def test_a_copy_of_a_tracked_model_does_not_reach_the_tracker() -> None:
    model, batch = build_model("llama"), _batch("llama")
    tracker = RowLossReader(model, True)
    tracker.attach()
    copied = copy.deepcopy(model)
    del tracker
    assert torch.isfinite(copied(**batch).loss)


def test_detaching_gives_back_a_loss_function_of_the_user() -> None:
    model = build_model("llama")

    def own(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(())

    model.loss_function = own
    tracker = RowLossReader(model, True)
    tracker.attach()
    assert model.loss_function is not own
    tracker.detach()
    assert model.loss_function is own


def test_a_loss_without_logits_has_no_row_losses() -> None:
    class Silent(torch.nn.Module):
        def forward(self, labels: torch.Tensor) -> tuple[torch.Tensor]:
            return (labels.float().mean(),)

    tracker, _ = _tracked("bert-classifier", Silent(), {"labels": torch.ones(3, dtype=torch.long)})
    assert tracker.take_row_losses() is None


def test_items_of_labels_that_are_shifted_ignored_or_missing() -> None:
    labels = torch.tensor([[1, 2, 3], [-100, -100, 5]])
    assert items_per_row({"labels": labels}, shifts_labels=False).tolist() == [3, 1]
    assert items_per_row({"labels": labels}, shifts_labels=True).tolist() == [2, 1]
    assert items_per_row({"labels": labels, "shift_labels": labels}, shifts_labels=True).tolist() == [3, 1]
    assert items_per_row({"labels": torch.tensor([0.5, 2.0])}, shifts_labels=False).tolist() == [1, 1]
    assert items_per_row({"pixel_values": torch.zeros(4, 2)}, shifts_labels=False).tolist() == [1] * 4


def test_tokens_by_mask_by_length_or_none() -> None:
    ids = torch.ones(2, 3, dtype=torch.long)
    assert tokens_per_row({"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}).tolist() == [2, 1]
    assert tokens_per_row({"input_ids": ids}).tolist() == [3, 3]
    assert tokens_per_row({"pixel_values": torch.zeros(4, 2)}).tolist() == [0] * 4
    assert num_rows({"name": "x", "scale": torch.tensor(1.0)}) == 0


def test_losses_of_double_precision_stay_so() -> None:
    class Double(torch.nn.Module):
        def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": logits}

    logits, labels = torch.randn(4, 5, dtype=torch.float64), torch.tensor([0, 3, 1, 4])
    rows = _row_losses("bert-classifier", Double(), {"logits": logits, "labels": labels})
    torch.testing.assert_close(rows, F.cross_entropy(logits, labels, reduction="none"), rtol=1e-15, atol=0)


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
