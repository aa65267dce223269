"""Accuracies of whole runs are those of loops in plain PyTorch, which share weights and tasks with them and no code.

EWC needs no such loop: `tests/tasks/methods/test_weights.py` has one that ends at the same weights.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from replay import DERPlusPlus, ReplayBuffer
from tasks.continual import ContinualRun
from tasks.methods import LwF
from tasks.metrics import all_metrics
from tasks.mlp import mlp
from tasks.sequences import permuted
from tasks.sources import digits
from tests.helpers import arguments

SEEDS, BATCH, CAPACITY, RATE = range(5), 8, 100, 3e-3
Sample = tuple[Tensor, Tensor, Tensor]  # pixels, class, and the logits when it was new


class Loop:
    """Replays as many samples of a reservoir as there are new ones."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.model, self.random = model, np.random.default_rng(seed)
        self.memory: list[Sample] = []
        self.num_seen = 0

    def drawn(self, count: int) -> list[Tensor]:
        places = self.random.choice(len(self.memory), min(count, len(self.memory)), replace=False)
        return [torch.stack(column) for column in zip(*(self.memory[place] for place in places), strict=True)]

    def loss(self, pixels: Tensor, labels: Tensor, logits: Tensor, task: int) -> Tensor:
        if not self.memory:
            return nn.functional.cross_entropy(logits, labels)
        old, known, _ = self.drawn(len(pixels))
        both = torch.cat([logits, self.model(old)["logits"]])
        return nn.functional.cross_entropy(both, torch.cat([labels, known]))

    def begin(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.0)

    def train(self, data: Any, task: int) -> None:
        self.begin()
        columns = data.read_columns(self.random.permutation(len(data)))
        for pixels, labels in zip(*(columns[name].split(BATCH) for name in ("pixel_values", "labels")), strict=True):
            logits = self.model(pixels)["logits"]
            self.optimizer.zero_grad()
            self.loss(pixels, labels, logits, task).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            for sample in zip(pixels, labels, logits.detach(), strict=True):
                place = len(self.memory) if len(self.memory) < CAPACITY else self.random.integers(self.num_seen + 1)
                self.memory[place : place + 1] = [sample] if place < CAPACITY else self.memory[place : place + 1]
                self.num_seen += 1


class Dark(Loop):
    """DER++ of two draws."""

    def loss(self, pixels: Tensor, labels: Tensor, logits: Tensor, task: int) -> Tensor:
        loss = nn.functional.cross_entropy(logits, labels)
        if not self.memory:
            return loss
        (first, _, stored), (second, known, _) = self.drawn(len(pixels)), self.drawn(len(pixels))
        apart = nn.functional.mse_loss(self.model(first)["logits"], stored)
        return loss + 0.5 * apart + 0.5 * nn.functional.cross_entropy(self.model(second)["logits"], known)


class Keeping(Loop):
    """LwF without a memory."""

    def begin(self) -> None:
        super().begin()
        self.before = copy.deepcopy(self.model)

    def loss(self, pixels: Tensor, labels: Tensor, logits: Tensor, task: int) -> Tensor:
        loss = nn.functional.cross_entropy(logits, labels)
        if not task:
            return loss
        with torch.no_grad():
            target = (self.before(pixels)["logits"] / 2).softmax(dim=1)
        own = (logits / 2).softmax(dim=1)
        divergence: Tensor = (target * (target / own).log()).sum(dim=1).mean()
        return loss + divergence


CASES: dict[str, tuple[type[Loop], Callable[[], dict[str, Any]]]] = {
    "ER": (Loop, lambda: {"memory": ReplayBuffer(CAPACITY)}),
    "DER++": (
        Dark,
        lambda: {
            "memory": ReplayBuffer(CAPACITY),
            "methods": lambda: [DERPlusPlus(alpha=0.5, beta=0.5, second="again")],
            "second_draw": "again",
        },
    ),
    "LwF": (Keeping, lambda: {"methods": [LwF()]}),
}


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return mlp(num_features=64, hidden_sizes=(64,), num_labels=10)


def accuracies(kind: type[Loop], tasks: Any) -> list[float]:
    found = []
    for seed in SEEDS:
        loop = kind(model_of(seed), seed)
        for number, task in enumerate(tasks):
            loop.train(task.train, number)
        columns = [task.evaluation.read_columns(np.arange(len(task.evaluation))) for task in tasks]
        right = [loop.model(own["pixel_values"])["logits"].argmax(dim=1) == own["labels"] for own in columns]
        found.append(fmean(float(own.float().mean()) for own in right))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_as_good_as_a_loop_in_plain_pytorch(name: str, tmp_path: Path) -> None:
    kind, options = CASES[name]
    tasks = permuted(*digits(), 3, seed=1, samples_per_task=400)
    own = []
    for seed in SEEDS:
        training: dict[str, Any] = {
            "num_train_epochs": 1,
            "max_steps": -1,
            "learning_rate": RATE,
            "seed": seed,
            "max_grad_norm": 0.0,
        }
        training |= {"optim": "adamw_torch", "lr_scheduler_type": "constant", "per_device_train_batch_size": 64}
        args = arguments(tmp_path / str(seed), **training)
        run = ContinualRun(model_of(seed), tasks, args, batch_size=BATCH, scores_before=False, **options())
        own.append(all_metrics(run.run())["average_accuracy"])
    expected = accuracies(kind, tasks)
    error = ((variance(own) + variance(expected)) / len(own)) ** 0.5
    assert abs(fmean(own) - fmean(expected)) < 2.0 * error + 0.005
