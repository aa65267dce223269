"""A head for each task: the loss is the cross entropy among the classes of a row's own task, and nothing else moves."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tasks.heads import Masked
from tasks.task import TaskSequence
from tests.helpers import arguments
from tests.refusals import refused
from tests.tasks.heads.models import CLASSIFIERS, Plain, classifier, inputs_of, tasks_of

GROUPS = ((0, 3), (1, 2, 5), (6,))
LABELS = torch.tensor([0, 2, 3, 5, 1, 3])


def tasks(*groups: tuple[int, ...]) -> TaskSequence:
    return tasks_of(*(groups or GROUPS), scenario="task")


def expected_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Row by row, among the logits of the row's own task alone."""
    losses = []
    for row, label in zip(logits, labels.tolist(), strict=True):
        group = next(group for group in GROUPS if label in group)
        losses.append(row[list(group)].logsumexp(0) - row[label])
    return torch.stack(losses).mean()


@contextmanager
def training(model: nn.Module, sequence: TaskSequence | None = None) -> Iterator[None]:
    head = Masked(sequence or tasks())
    head.begin(model, 0)
    with head.training():
        yield


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_loss_is_among_the_tasks_own_classes(kind: str) -> None:
    model, inputs = classifier(kind, 8).double(), inputs_of(kind, 6)
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    model.train()
    own, labels = [0, 2, 3, 5], LABELS.clone()
    labels[[1, 4]] = -100  # rows whose label is ignored
    expected = expected_loss(model(**inputs)["logits"][own], LABELS[own])
    gradients = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    with training(model):
        loss = model(**inputs, labels=labels)["loss"]
    loss.backward()
    assert abs(loss.item() - expected.item()) < 1e-12
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        wanted = torch.zeros_like(parameter) if gradient is None else gradient
        torch.testing.assert_close(own, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_masked_logits_are_finite_also_where_memories_keep_them(dtype: torch.dtype) -> None:
    model = Plain(8).to(dtype)
    with training(model):
        logits = model(inputs_of("plain", 6)["pixel_values"].to(dtype), LABELS)["logits"]
    assert logits.dtype == dtype
    kept = logits.detach().float()
    assert torch.isfinite(kept).all()
    masked = kept < -1e4
    assert masked.sum(dim=1).tolist() == [6, 5, 6, 5, 5, 6]
    assert torch.equal(kept.to(dtype)[masked], logits[masked])  # so that differences are 0
    assert torch.softmax(kept, -1)[masked].eq(0).all()


def test_evaluation_sees_logits_as_they_are() -> None:
    model, inputs = classifier("mlp", 8), inputs_of("mlp", 6)
    plain = model(**inputs, labels=LABELS)
    with training(model):
        model.eval()
        for labels in (LABELS, None):
            assert torch.equal(model(**inputs, labels=labels).logits, plain.logits)
        assert model(**inputs, labels=LABELS).loss == plain.loss
        model.train()
        assert not torch.equal(model(**inputs, labels=LABELS).logits, plain.logits)
    assert torch.equal(model(**inputs, labels=LABELS).logits, plain.logits)


def test_hooks_go_also_where_training_fails() -> None:
    model = classifier("mlp", 8)
    with suppress(KeyError), training(model):
        assert (len(model._forward_pre_hooks), len(model.head._forward_hooks)) == (1, 1)
        raise KeyError
    assert (len(model._forward_pre_hooks), len(model.head._forward_hooks)) == (0, 0)
    context = Masked(tasks()).training()
    with refused("head"):
        context.__enter__()


def test_a_label_has_to_tell_the_task_and_to_reach_the_model(tmp_path: Path) -> None:
    def check(sequence: TaskSequence, options: Any = None, keeps_logits: bool = False, **changes: Any) -> None:
        Masked(sequence).check(classifier("mlp", 8), arguments(tmp_path, **changes), options or {}, keeps_logits)

    check(tasks(), {"compute_loss_func": None, "callbacks": []}, keeps_logits=True)
    check(tasks((0, 1), (1, 0), (2,)))  # the same classes are the same mask
    with refused("head"):
        check(tasks((0, 1, 2), (3,), (1, 2, 5)))
    with refused("label_smoothing_factor"):
        check(tasks(), label_smoothing_factor=0.1)
    with refused("compute_loss_func"):
        check(tasks(), {"compute_loss_func": print})
    with refused("num_labels"):
        check(tasks((0, 1), (2, 8)))


@pytest.mark.parametrize("kind", ["mlp", "plain"])
def test_labels_that_tell_no_task_are_refused(kind: str) -> None:
    model, inputs = classifier(kind, 8), inputs_of(kind, 6)
    with training(model):
        with refused("labels"):
            model(**inputs)
        with refused("labels"):
            model(**inputs, labels=torch.tensor([0, 9, 4, 1, 9, -100]))
        with refused("labels"):
            model(**inputs, labels=LABELS.float())
        with refused("labels"):
            model(**inputs, labels=LABELS[:5])
        assert torch.isfinite(model(*inputs.values(), LABELS)["loss"])  # by position too
