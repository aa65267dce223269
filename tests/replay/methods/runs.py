"""Small runs with a replay buffer, and what was in each of their steps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mixer import MixingTrainer
from mixer.loading.loaded_step import StepBatch
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import arguments, mixing_trainer, weights_of

NUM_FEATURES, NUM_CLASSES = 6, 3


class Classifier(nn.Module):
    """Two linear layers in double precision, with an output as those of transformers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(NUM_FEATURES, 8, dtype=torch.float64)
        self.head = nn.Linear(8, NUM_CLASSES, dtype=torch.float64)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.body(x).tanh())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class TwoHeads(Classifier):
    """A head for odd and one for even labels: memory and new samples may reach different ones."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(8, 3, dtype=torch.float64)
        self.other.weight.data = -self.head.weight  # what helps the one harms the other
        self.unused = nn.Linear(2, 2, dtype=torch.float64)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        head = self.other if bool((labels == 2).all()) else self.head
        logits = head(self.body(x).tanh())
        return {"loss": nn.functional.cross_entropy(logits, torch.ones_like(labels)), "logits": logits}


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, num_samples: int = 60, seed: int = 1):
        generator = torch.Generator().manual_seed(seed)
        self.x = 2 * torch.randn(num_samples, NUM_FEATURES, dtype=torch.float64, generator=generator)
        self.labels = torch.randint(0, NUM_CLASSES, (num_samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    x = torch.stack([torch.as_tensor(sample["x"], dtype=torch.float64) for sample in samples])
    return {"x": x, "labels": torch.tensor([int(sample["labels"]) for sample in samples])}


class Spy(Method):
    """Notes the batches of each stream and the learning rate, step by step, on one rank."""

    def __init__(self) -> None:
        self.batches: list[dict[str, dict[str, torch.Tensor]]] = []
        self.rates: list[float] = []
        self.orders: list[list[int]] = []

    def attach(self, run: RunContext) -> None:
        self.run = run

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        self.rates.append(self.run.passes.learning_rate)
        self.orders.append([])
        micros = batch.micro_batches
        inputs = {name: torch.cat([micro.inputs[name] for micro in micros]) for name in micros[0].inputs}
        stream_ids = np.concatenate([micro.stream_ids for micro in micros])
        there = {self.run.streams[k].name: stream_ids == k for k in sorted(set(stream_ids.tolist()))}
        self.batches.append({name: {key: own[rows] for key, own in inputs.items()} for name, rows in there.items()})

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        self.orders[-1].append(int(trained.micro.stream_ids[0]))


def make_trainer(
    folder: str | Path, methods: Any = (), new: Any = None, buffer: Any = None, second: bool = False, **changes: Any
) -> MixingTrainer:
    buffer = ReplayBuffer(12) if buffer is None else buffer
    streams = {**(new if isinstance(new, dict) else {"new": new or Points()}), "memory": buffer}
    if second:
        streams["second"] = buffer.second_draw()
    options = {"model": None, "mixing": ReplayRatio(0.45), "batch_size": 7, "data_collator": None}
    options = {name: changes.pop(name, value) for name, value in options.items()}
    options["model"] = options["model"] or Classifier()
    options["max_tokens_per_micro_batch"] = changes.pop("max_tokens", None)
    args = arguments(folder, **{"max_steps": 5, "per_device_train_batch_size": 3, **changes})
    trainer = mixing_trainer(MixingTrainer, args=args, train_dataset=streams, methods=methods, **options)
    trainer.buffer = buffer
    return trainer


def trained(folder: str | Path, methods: Any = (), **options: Any) -> MixingTrainer:
    trainer = make_trainer(folder, methods, **options)
    trainer.train()
    return trainer


def spied(folder: str | Path, *methods: Method, **options: Any) -> tuple[MixingTrainer, Spy]:
    spy = Spy()
    return trained(folder, [*methods, spy], **options), spy


def logged(trainer: MixingTrainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def gradient_of(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def step(model: nn.Module, gradient: list[torch.Tensor], rate: float) -> None:
    with torch.no_grad():
        for parameter, own in zip(model.parameters(), gradient, strict=True):
            parameter -= rate * own


def assert_same(first: nn.Module, second: nn.Module, atol: float = 1e-12) -> None:
    torch.testing.assert_close(weights_of(first), weights_of(second), rtol=0, atol=atol)
