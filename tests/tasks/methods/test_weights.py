"""Importances and penalties of EWC and SI, worked out by hand on a linear classifier."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from mixer.utils.random_state import drawn_places
from tasks.continual.continual import ContinualRun
from tasks.methods import SI, OnlineEWC
from tasks.methods.shared import WeightAnchor
from tasks.sequences import permuted
from tasks.sources import Arrays
from tests.helpers import arguments
from tests.tasks.methods.runs import Softmax, context

RATE, STEPS = 0.2, 5


def samples() -> Arrays:
    random = np.random.default_rng(3)
    labels = np.arange(12) % 3
    return Arrays((random.normal(size=(12, 4)) + 3.0 * np.eye(3, 4)[labels]).astype(np.float32), labels)


def run(folder: Path, method: Any, num_tasks: int = 2, rate: float = RATE, steps: int = STEPS) -> ContinualRun:
    """Trains on whole tasks at once, by plain gradient descent."""
    options = {"max_steps": steps, "per_device_train_batch_size": 12, "max_grad_norm": 0.0}
    args = arguments(folder, learning_rate=rate, lr_scheduler_type="constant", **options)
    tasks = permuted(samples(), samples(), 2, 0)[:num_tasks]
    sgd = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": rate})}
    made = ContinualRun(Softmax(4, 3), tasks, args, methods=[method], batch_size=12, scores_before=False, **sgd)
    made.run()
    return made


def tensors(task: Any) -> tuple[torch.Tensor, torch.Tensor]:
    columns = task.train.read_columns(np.arange(12))
    return columns["pixel_values"].double(), columns["labels"]


def loss_and_gradient(weight: torch.Tensor, task: Any) -> tuple[float, torch.Tensor]:
    inputs, labels = tensors(task)
    probabilities = (inputs @ weight.T).softmax(dim=-1)
    errors = probabilities - nn.functional.one_hot(labels, 3)
    loss = -probabilities.gather(1, labels[:, None]).log().mean()
    return float(loss), errors.T @ inputs / 12


def fisher(weight: torch.Tensor, task: Any) -> torch.Tensor:
    """The mean of squares of `(p − e_y) xᵀ`."""
    inputs, labels = tensors(task)
    errors = (inputs @ weight.T).softmax(dim=-1) - nn.functional.one_hot(labels, 3)
    return (errors[:, :, None] * inputs[:, None, :]).square().mean(dim=0)


def descended(weight: torch.Tensor, task: Any, pull: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient descent with a penalty; gives the weight and the sum of `−g Δθ`."""
    path = torch.zeros_like(weight)
    for _ in range(STEPS):
        _, gradient = loss_and_gradient(weight, task)
        move = -RATE * (gradient + pull(weight))
        path, weight = path - gradient * move, weight + move
    return weight, path


def start() -> torch.Tensor:
    return Softmax(4, 3).layer.weight.detach()


def test_fisher_information_and_the_penalty_are_those_of_the_paper(tmp_path: Path) -> None:
    method = OnlineEWC(strength=3.0, decay=0.25)
    made = run(tmp_path, method)
    first, second = made.sequence
    anchor, _ = descended(start(), first, lambda weight: 0.0)
    information = fisher(anchor, first)
    end, _ = descended(anchor, second, lambda weight: 3.0 * information * (weight - anchor))
    weight = made.model.layer.weight.detach()
    torch.testing.assert_close(weight, end, rtol=0, atol=1e-9)
    expected = 0.25 * information + fisher(end, second)
    torch.testing.assert_close(method._anchor.importances["layer.weight"], expected, rtol=0, atol=1e-9)


def test_a_part_of_a_task_has_the_fisher_information_of_that_part(tmp_path: Path) -> None:
    method = OnlineEWC(samples=4)
    made = run(tmp_path, method, num_tasks=1)
    task, weight = made.sequence[0], made.model.layer.weight.detach()
    places = drawn_places(len(task.train), 4, made.args.seed, 0)  # by the run's seed and the number of the task
    inputs, labels = (tensors(task)[number][places] for number in range(2))
    errors = (inputs @ weight.T).softmax(dim=-1) - nn.functional.one_hot(labels, 3)
    expected = (errors[:, :, None] * inputs[:, None, :]).square().mean(dim=0)
    torch.testing.assert_close(method._anchor.importances["layer.weight"], expected, rtol=0, atol=1e-9)


def test_synaptic_intelligence_is_that_of_the_paper(tmp_path: Path) -> None:
    method = SI(strength=0.5, damping=0.1)
    made = run(tmp_path, method)
    first, second = made.sequence
    anchor, path = descended(start(), first, lambda weight: 0.0)
    importance = path.clamp(min=0.0) / ((anchor - start()).square() + 0.1)
    end, path = descended(anchor, second, lambda weight: 2 * 0.5 * importance * (weight - anchor))
    torch.testing.assert_close(made.model.layer.weight.detach(), end, rtol=0, atol=1e-9)
    expected = importance + path.clamp(min=0.0) / ((end - anchor).square() + 0.1)
    torch.testing.assert_close(method._anchor.importances["layer.weight"], expected, rtol=0, atol=1e-9)


def test_weights_that_were_added_since_are_not_held() -> None:
    anchor, small, grown = WeightAnchor(), nn.Linear(2, 2, bias=False), nn.Linear(2, 3, bias=False)
    anchor.hold(small, {"weight": torch.full((2, 2), 2.0)})
    runs: Any = SimpleNamespace(model=grown, loss_scale=lambda: 4.0)
    anchor.add_gradient(context(runs), 3.0)
    expected = torch.zeros(3, 2)
    expected[:2] = 4.0 * 3.0 * 2.0 * (grown.weight[:2] - small.weight).detach()
    torch.testing.assert_close(grown.weight.grad, expected)
    anchor.hold(grown, {"weight": torch.ones(3, 2)}, decay=0.5)
    assert anchor.importances["weight"].tolist() == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]
