"""Runs whose streams are at odds, in double precision, and what every one of their steps did."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixer import MixingTrainer
from mixer.trainer.method import Method
from tests.mixer.trainer.runs import logged as logged, make


def points(num_samples: int, seed: int, label: int) -> list[dict[str, Tensor]]:
    """Points of the plane's first quarter, all of one class: streams of different classes are at odds."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(num_samples, 4, generator=generator, dtype=torch.float64)
    return [{"x": row, "labels": torch.tensor(label)} for row in x]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 5, dtype=torch.float64)
        self.head = nn.Linear(5, 3, dtype=torch.float64)

    def hidden(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(torch.tanh(self.hidden(x, labels)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class TwoSides(Classifier):
    """Micro-batches of class 0 reach a layer of their own and the others another; a third is reached by none."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.none = (nn.Linear(4, 5, dtype=torch.float64) for _ in range(3))

    def hidden(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.body(x) + (self.left if int(labels[0]) == 0 else self.right)(x)


class Watch(Method):
    """Notes for each step the model before it, its samples by stream, and the gradient that the optimizer gets."""

    def __init__(self) -> None:
        self.models: list[dict[str, Tensor]] = []
        self.samples: list[dict[int, list[dict[str, Tensor]]]] = []
        self.gradients: list[Tensor] = []

    def begin_step(self, model: nn.Module, batch: Any) -> None:
        self.models.append({name: value.detach().clone() for name, value in model.state_dict().items()})
        by_stream: dict[int, list[dict[str, Tensor]]] = {}
        for micro in batch.micro_batches:
            by_stream.setdefault(int(micro.stream_ids[0]), []).append(dict(micro.inputs))
        self.samples.append(by_stream)

    def end_backward(self, model: nn.Module) -> None:
        self.gradients.append(flat([parameter.grad for parameter in model.parameters()], model))


def flat(gradients: Any, model: nn.Module) -> Tensor:
    pairs = zip(gradients, model.parameters(), strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs]).detach().clone()


def jacobian(watch: Watch, number: int, model: nn.Module) -> Tensor:
    """The gradients of the streams' parts of a step's loss, by one backward each over all of their samples."""
    model.load_state_dict(watch.models[number])
    by_stream = watch.samples[number]
    total = sum(len(inputs["labels"]) for parts in by_stream.values() for inputs in parts)
    rows = []
    for parts in by_stream.values():
        loss = sum((model(**inputs)["loss"] * len(inputs["labels"]) / total for inputs in parts), torch.zeros(()))
        rows.append(flat(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True), model))
    return torch.stack(rows)


def at_odds() -> dict[str, Any]:
    return {"a": points(20, 1, 0), "b": points(11, 2, 1), "c": points(6, 3, 2)}


def make_trainer(folder: Path, conflict: Any = None, **changes: Any) -> MixingTrainer:
    training = {"per_device_train_batch_size": 3, "max_steps": 4, "learning_rate": 0.5}
    data = {"train_dataset": at_odds(), "mixing": [0.4, 0.35, 0.25], "batch_size": 17}
    # With this epoch no step is the rest of one.
    options: dict[str, Any] = {"model": Classifier, "epoch_size": 170, "methods": [], **training, **data, **changes}
    conflict = import_module("torchjd.aggregation").UPGrad() if conflict == "upgrad" else conflict
    return make(folder, options.pop("model")(), conflict=conflict, **options)


def run(folder: Path, conflict: Any = None, **changes: Any) -> tuple[MixingTrainer, Watch]:
    watch = Watch()
    trainer = make_trainer(folder, conflict, methods=[*changes.pop("methods", []), watch], **changes)
    trainer.train()
    return trainer, watch


def state_of(trainer: MixingTrainer) -> dict[str, Any]:
    """What has to be the same after a run that was resumed."""
    weights = np.concatenate([p.detach().numpy().ravel() for p in trainer.model.parameters()])
    return {"weights": weights.tobytes(), "norms": logged(trainer, "grad_norm")}
