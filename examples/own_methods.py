# ruff: noqa: D102  # the calls are described where they are declared
"""Two methods and a selection of one's own, for continual runs: docs/own_method.md explains them."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mixer.trainer.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext, TaskContext
from replay.selection import Offers, Selection


class KeepPredictions(Method):
    """Learning without forgetting: keeps the predictions for earlier classes."""

    adds_term = True

    def __init__(self, strength: float = 1.0):
        self.strength = strength

    def attach(self, run: RunContext) -> None:
        self.run = run

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        self.before = copy.deepcopy(model).eval() if task.number else None
        self.earlier = sorted({label for classes in task.earlier for label in classes})

    def term(self, trained: ForwardResult) -> Tensor | None:
        if self.before is None:
            return None
        with torch.no_grad():
            before = self.before(**self.run.runs.prepared(trained.micro.inputs))["logits"]
        target = before[:, self.earlier].softmax(dim=-1)
        logs = trained.output["logits"][:, self.earlier].log_softmax(dim=-1)
        return self.run.mean_over_step(-self.strength * target * logs, trained)


class HoldWeights(Method):
    """Elastic weight consolidation: holds the weights that earlier tasks need."""

    takes_gradients = True
    lasts_for_all_tasks = True

    def __init__(self, strength: float = 100.0, samples: int = 200):
        self.strength, self.samples = strength, samples
        self.fisher: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}

    def attach(self, run: RunContext) -> None:
        self.run = run

    def end_backward(self, model: nn.Module) -> None:
        for name, weight in self.run.runs.model.named_parameters():
            if name in self.fisher and weight.grad is not None:
                pull = self.strength * self.fisher[name] * (weight.detach() - self.anchor[name])
                weight.grad += self.run.mean_over_step(pull)

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        run, runs = self.run, self.run.runs
        sums = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
        count = min(self.samples, len(task.dataset))
        with runs.alone():
            for position in range(run.rank, count, run.world_size):
                model.zero_grad()
                model(**runs.prepared(runs.collator([task.dataset[position]])))["loss"].backward()
                for name, weight in model.named_parameters():
                    if weight.grad is not None:
                        sums[name] += weight.grad.square()
        for name, weight in model.named_parameters():
            self.fisher[name] = self.fisher.get(name, 0.0) + run.rank_sync.add_up(sums[name]) / count
            self.anchor[name] = weight.detach().clone()

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("fisher", "anchor"):
            save_file(getattr(self, name), folder / f"{name}.safetensors")

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        if folder.exists():
            self.fisher, self.anchor = (load_file(folder / f"{name}.safetensors") for name in ("fisher", "anchor"))


class KeepHardest(Selection):
    """Keeps the samples with the largest losses."""

    needs = frozenset({"loss"})

    def start(self, capacity: int, key: int) -> None:
        super().start(capacity, key)
        self.losses = np.empty(capacity)

    def choose(self, offers: Offers) -> Any:
        slots = np.full(offers.count, -1)
        for number, loss in enumerate([] if offers.losses is None else offers.losses):
            if self._size < self._capacity:
                slot, self._size = self._size, self._size + 1
            elif loss <= self.losses.min():
                continue
            else:
                slot = int(self.losses.argmin())
            self.losses[slot], slots[number] = loss, slot
        return slots

    def remove(self, slot: int) -> None:
        self._size -= 1
        self.losses[slot] = self.losses[self._size]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "losses": self.losses[: self._size]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._size = len(state["losses"])
        self.losses[: self._size] = state["losses"]
