"""SLCA: Gaussians by NumPy, the alignment by a loop of plain PyTorch, and rates of two parts of a model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mixer.utils.random_state import seeded
from tasks.methods import SLCA, slow_encoder
from tasks.methods.slca import drawn, gaussian, normalized_loss
from tasks.sequences import from_data_sets
from tests.refusals import refused
from tests.tasks.methods.runs import build, context, data
from tests.tasks.methods.test_losses import LABELS, LOGITS, trained


@pytest.mark.parametrize("count", [3, 50])  # fewer than features, and more
def test_a_gaussian_has_the_mean_and_covariance_of_its_samples(count: int) -> None:
    features = torch.randn(count, 5, generator=torch.Generator().manual_seed(count)) * torch.arange(5.0) + 1.0
    found = gaussian(features)
    assert found.factor.shape == (min(count, 5), 5)
    torch.testing.assert_close(found.mean, features.mean(dim=0))
    expected = torch.from_numpy(np.cov(features.double().numpy(), rowvar=False)).float()
    torch.testing.assert_close(found.factor.T @ found.factor, expected, rtol=1e-4, atol=1e-4)
    with seeded(1):
        many = drawn(found, 200_000)
    torch.testing.assert_close(many.mean(dim=0), found.mean, rtol=0, atol=0.05)
    torch.testing.assert_close(many.T.cov(), expected, rtol=0.03, atol=0.05)


def test_one_sample_and_samples_that_are_all_the_same_have_no_spread() -> None:
    for features in (torch.ones(1, 4), torch.full((6, 4), 2.0)):
        assert torch.equal(drawn(gaussian(features), 3), features[:1].expand(3, 4))


def test_new_samples_compete_among_the_classes_of_their_task() -> None:
    losses = nn.functional.cross_entropy(LOGITS[:, 2:], torch.tensor([0, 1, 1]), reduction="none")
    method = SLCA()
    method.run, method._own = context(SimpleNamespace(num_skipped=0, prepare_inputs=dict), world_size=2), [2, 3]
    step = trained()
    step.micro.inputs["labels"] = torch.tensor([2, 3, 3])
    torch.testing.assert_close(method.term(step), losses.sum() / 6 * 2)


def test_logits_are_of_length_one_over_the_temperature() -> None:
    logits = LOGITS.numpy() / np.linalg.norm(LOGITS.numpy(), axis=1, keepdims=True) / 0.1
    chosen = logits[np.arange(3), LABELS.numpy()]
    expected = (np.log(np.exp(logits).sum(axis=1)) - chosen).mean()
    assert float(normalized_loss(LOGITS, LABELS, 0.1)) == pytest.approx(expected)


def test_an_alignment_is_descent_on_what_is_drawn_by_hand() -> None:
    method, layer = SLCA(num_samples=4, num_epochs=2, learning_rate=0.5, temperature=0.5), nn.Linear(3, 6)
    random = torch.Generator().manual_seed(3)
    means = torch.randn(2, 3, generator=random)
    for label, mean in zip((1, 4), means, strict=True):
        method._gaussians[0, label] = gaussian(mean[None])  # without spread: what is drawn is the mean
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    with seeded(2):
        method.align(layer)
    with seeded(2):
        own = [weight.requires_grad_(), bias.requires_grad_()]
        moved = [torch.zeros_like(part) for part in own]
        for rate in (0.5, 0.25):  # a cosine over two epochs
            torch.randn(4, 1), torch.randn(4, 1)
            for rows in torch.randperm(8).split(4):
                logits = (means[rows // 4] @ weight.T + bias)[:, [1, 4]]
                logits = logits / logits.norm(dim=1, keepdim=True) / 0.5
                loss = -(logits.log_softmax(dim=1)[torch.arange(4), rows // 4]).mean()
                gradients = torch.autograd.grad(loss, own)
                with torch.no_grad():
                    for part, velocity, gradient in zip(own, moved, gradients, strict=True):
                        part -= rate * velocity.mul_(0.9).add_(gradient)
    torch.testing.assert_close(layer.weight, weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(layer.bias, bias, rtol=0, atol=1e-5)
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_classes_that_come_again_have_a_gaussian_for_each_task(tmp_path: Path) -> None:
    tasks = from_data_sets({name: (data(), data()) for name in ("first", "second")}, "domain")
    method = SLCA(4, 1)
    build(tmp_path, "SLCA", sequence=tasks, methods=[method]).run()
    assert sorted(method._gaussians) == [(task, label) for task in range(2) for label in range(6)]


def test_all_but_the_output_layer_learns_at_a_part_of_the_rate(tmp_path: Path) -> None:
    sgd: dict[str, Any] = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.05}), "methods": None}
    both = [
        build(tmp_path / name, "SLCA", max_steps=1, trainer_class=slow_encoder(rate), **sgd)
        for name, rate in (("plain", 1.0), ("slow", 0.1))
    ]
    moves = []
    for run in both:
        before = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
        run.sequence = run.sequence[:1]
        trainer = run._new_trainer(0)
        trainer.train()
        assert len(trainer.optimizer.param_groups) == 4
        moves.append({name: parameter.detach() - before[name] for name, parameter in run.model.named_parameters()})
    for name, moved in moves[0].items():
        torch.testing.assert_close(moves[1][name], moved * (1.0 if "head" in name else 0.1), rtol=1e-3, atol=1e-6)


def test_a_frozen_output_layer_is_refused(tmp_path: Path) -> None:
    run = build(tmp_path, "SLCA")
    run.model.head.requires_grad_(False)  # type: ignore[operator, union-attr]
    with refused("model"):
        run.run()
