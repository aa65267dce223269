from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from mixer import Head
from mixer.models.heads import HeadModule
from tests.refusals import refused

_POOLINGS = ("mean", "first", "last")


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
    pooling=st.sampled_from(_POOLINGS),
    seed=st.integers(0, 100),
)
def test_pooling_sees_the_tokens_alone(lengths: list[int], side: str, pooling: Any, seed: int) -> None:
    torch.manual_seed(seed)
    head = HeadModule(Head(2, pooling=pooling, dropout=0.0), 3).double()
    most, rows = max(lengths), [torch.randn(length, 3, dtype=torch.float64) for length in lengths]
    states = torch.full((len(rows), most, 3), 1e3, dtype=torch.float64)
    mask = torch.zeros(len(rows), most, dtype=torch.int64)
    for number, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(most - len(row), most)
        states[number, place], mask[number, place] = row, 1
    expected = {"mean": lambda row: row.mean(0), "first": lambda row: row[0], "last": lambda row: row[-1]}[pooling]
    by_hand = head.output(torch.stack([expected(row) for row in rows]))
    torch.testing.assert_close(head(states, mask), by_hand)
    if len(set(lengths)) == 1:
        torch.testing.assert_close(head(states), by_hand)


def test_a_row_without_tokens_gives_numbers() -> None:
    for pooling in _POOLINGS:
        head = HeadModule(Head(2, pooling=pooling), 3)
        assert torch.isfinite(head(torch.randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64))).all()


F = nn.functional


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "size", "labels", "by_hand"),
    [
        ("classification", (4, 3), torch.tensor([0, 2, -100, 1]), F.cross_entropy),
        (
            "token_classification",
            (2, 3, 3),
            torch.tensor([[0, -100, 2], [1, 1, -100]]),
            lambda outputs, labels: F.cross_entropy(outputs.reshape(-1, 3), labels.reshape(-1)),
        ),
        ("regression", (4, 3), torch.rand(4, 3), lambda outputs, labels: F.mse_loss(outputs, labels.to(outputs))),
        (
            "multi_label",
            (4, 3),
            torch.rand(4, 3).round().long(),
            lambda outputs, labels: F.binary_cross_entropy_with_logits(outputs, labels.to(outputs)),
        ),
    ],
)
def test_losses_are_means_per_label(kind: Any, size: Any, labels: Tensor, by_hand: Any, dtype: torch.dtype) -> None:
    outputs = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    loss = HeadModule(Head(3, kind=kind), 8).loss(outputs, labels)
    assert loss.dtype == wide
    torch.testing.assert_close(loss, by_hand(outputs.to(wide), labels), rtol=1e-6, atol=1e-6)


def test_labels_that_are_all_left_out_cost_nothing() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    loss = HeadModule(Head(3), 8).loss(logits, torch.full((2,), -100))
    loss.backward()
    assert loss == 0.0
    assert torch.equal(logits.grad, torch.zeros(2, 3))


WHOLE = torch.int64


@pytest.mark.parametrize(
    ("kind", "num_labels", "labels"),
    [
        ("classification", 3, torch.zeros(2)),
        ("classification", 3, torch.zeros(2, 4, dtype=WHOLE)),
        ("token_classification", 3, torch.zeros(2, dtype=WHOLE)),
        ("multi_label", 3, torch.zeros(2)),
        ("regression", 1, torch.zeros(2, 3)),
    ],
)
def test_labels_of_another_kind_of_head_are_refused(kind: Any, num_labels: int, labels: Tensor) -> None:
    head = HeadModule(Head(num_labels, kind=kind), 8)
    with refused("labels"):
        head.loss(head(torch.zeros(2, 4, 8)), labels)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("classification", 5), ("token_classification", 5), ("regression", None), ("multi_label", None)],
)
def test_numbers_of_classes_are_those_that_labels_name(kind: Any, expected: int | None) -> None:
    head = Head(5, kind=kind, pooling="last", dropout=0.3)
    assert HeadModule(head, 4).num_classes == expected
    assert Head(**head.to_dict()) == head


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"kind": "ranking"}, "kind"),
        ({"pooling": "max"}, "pooling"),
        ({"num_labels": 1}, "num_labels"),
        ({"num_labels": 0, "kind": "regression"}, "num_labels"),
        ({"num_labels": True}, "num_labels"),
        ({"num_labels": 3.0}, "num_labels"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": float("nan")}, "dropout"),
    ],
)
def test_heads_out_of_range_are_refused(options: dict[str, Any], option: str) -> None:
    with refused(option):
        Head(**{"num_labels": 3, **options})
