# ruff: noqa: D102  # the calls are described where they are declared
"""Methods and a selection of one's own, for continual runs among others: docs/extend_replay.md explains the calls."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mixer import ForwardResult, Method, RunContext
from replay.selection import Offers, Selection
from tasks.methods import TaskContext, TaskMethod


class Anchored(Method):
    """A penalty on the distance of the weights from those at the start of the run."""

    needs = frozenset({"whole gradients"})

    def __init__(self, strength: float):
        self.strength = strength
        self.anchor: list[Tensor] | None = None

    def attach(self, run: RunContext) -> None:
        self.run, self.anchor = run, None

    def prepare(self, model: nn.Module) -> None:
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        start = self.anchor or self.weights  # load has set the anchor if the run resumes
        self.anchor = [one.detach().clone().to(weight.device) for one, weight in zip(start, self.weights, strict=True)]

    def term(self, trained: ForwardResult) -> Tensor | None:
        pairs = zip(self.weights, self.anchor or [], strict=True)
        penalty = torch.stack([(weight - anchor).square().sum() for weight, anchor in pairs]).sum()
        return self.run.mean_over_step(self.strength * penalty, trained)

    def settings(self) -> str:
        return f"Anchored({self.strength})"

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.anchor, folder / "anchor.pt")

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        if (folder / "anchor.pt").exists():
            self.anchor = torch.load(folder / "anchor.pt", map_location="cpu", weights_only=True)

    def release(self) -> None:  # the next run has a start of its own
        self.anchor = None


class Turning(Method):
    """Removes from each weight's gradient the part along the weight: a step of SGD turns weights and scales none."""

    needs = frozenset({"whole gradients"})

    @torch.no_grad()
    def end_backward(self, model: nn.Module) -> None:
        self.before, self.after = torch.zeros(()), torch.zeros(())
        for weight in model.parameters():
            if weight.grad is not None:
                self.before = self.before + weight.grad.square().sum()
                along = (weight.grad * weight).sum() / weight.square().sum().clamp(min=1e-30)
                weight.grad -= along * weight
                self.after = self.after + weight.grad.square().sum()

    def log_entries(self) -> dict[str, float]:
        return {"turning": float(self.after / self.before)}


class KeepPredictions(TaskMethod):
    """Learning without forgetting: keeps the predictions for earlier classes."""

    def __init__(self, strength: float = 1.0):
        self.strength = strength

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        super().begin_task(task, model)
        self.before = copy.deepcopy(model).eval() if task.number else None
        self.earlier = sorted({label for classes in task.earlier for label in classes})

    def term(self, trained: ForwardResult) -> Tensor | None:
        if self.before is None:
            return None
        with torch.no_grad():
            before = self.before(**self.run.passes.prepare_inputs(trained.micro.inputs))["logits"]
        target = before[:, self.earlier].softmax(dim=-1)
        logs = trained.output["logits"][:, self.earlier].log_softmax(dim=-1)
        return self.run.mean_over_step(-self.strength * target * logs, trained)


class HoldWeights(TaskMethod):
    """Elastic weight consolidation: holds the weights that earlier tasks need."""

    needs = frozenset({"whole gradients"})
    lasts_for_all_tasks = True

    def __init__(self, strength: float = 100.0, samples: int = 200):
        self.strength, self.samples = strength, samples
        self.fisher: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}

    def end_backward(self, model: nn.Module) -> None:
        for name, weight in self.run.passes.model.named_parameters():
            if name in self.fisher and weight.grad is not None:
                pull = self.strength * self.fisher[name] * (weight.detach() - self.anchor[name])
                weight.grad += self.run.mean_over_step(pull)

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        run, passes = self.run, self.run.passes
        sums = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
        count = min(self.samples, len(task.dataset))
        with passes.on_one_rank():
            for position in range(run.rank, count, run.world_size):
                model.zero_grad()
                model(**passes.prepare_inputs(passes.collator([task.dataset[position]])))["loss"].backward()
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


class KeepSurprising(Selection):
    """SuRe's selection (arXiv:2511.22367): of each task equally many samples, those with the largest losses."""

    needs = frozenset({"task", "loss"})
    remembered = ("entries",)

    def start(self, capacity: int, key: int) -> None:
        super().start(capacity, key)
        self.entries: list[list[float]] = []  # task and loss, by slot

    @property
    def size(self) -> int:
        return len(self.entries)

    def choose(self, offers: Offers) -> Any:
        slots = np.full(offers.count, -1)
        for number, (task, loss) in enumerate(zip(offers.tasks.tolist(), offers.losses.tolist(), strict=True)):
            if self.size < self.capacity:
                slots[number] = self.size
                self.entries.append([task, loss])
                continue
            sizes = Counter([task, *(own for own, _ in self.entries)])  # with the new one
            largest = task if sizes[task] == max(sizes.values()) else max(sizes, key=sizes.__getitem__)
            least, slot = min((loss, slot) for slot, (own, loss) in enumerate(self.entries) if own == largest)
            if largest != task or loss > least:
                slots[number], self.entries[slot] = slot, [task, loss]
        return slots

    def remove(self, slot: int) -> None:
        self.entries[slot] = self.entries[-1]
        self.entries.pop()
