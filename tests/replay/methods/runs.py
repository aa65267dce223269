"""Small runs with a replay buffer, and what was in each of their steps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mixer import MixingTrainer
from mixer.loading.step import StepBatch
from mixer.trainer.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import arguments, weights_of

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


class Spy(Method):
    """Notes the batches of each stream and the learning rate, step by step, on one rank."""

    def __init__(self) -> None:
        self.batches: list[dict[str, dict[str, torch.Tensor]]] = []
        self.rates: list[float] = []
        self.orders: list[list[int]] = []

    def attach(self, run: RunContext) -> None:
        self.run = run

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        self.rates.append(self.run.runs.learning_rate)
        self.orders.append([])
        rows: dict[str, list[tuple[int, dict[str, torch.Tensor]]]] = {}
        for micro in batch.micro_batches:
            for number, stream_id in enumerate(micro.stream_ids.tolist()):
                row = {name: values[number] for name, values in micro.inputs.items()}
                rows.setdefault(self.run.streams[stream_id].name, []).append((int(micro.positions[number]), row))
        self.batches.append(
            {name: {key: torch.stack([row[key] for _, row in own]) for key in own[0][1]} for name, own in rows.items()}
        )

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, is_last_first: bool) -> None:
        self.orders[-1].append(int(trained.micro.stream_ids[0]))


def make_trainer(
    folder: str | Path,
    methods: Any = (),
    model: nn.Module | None = None,
    new: Any = None,
    buffer: ReplayBuffer | None = None,
    second: bool = False,
    mixing: Any = None,
    batch_size: int = 7,
    max_tokens: int | None = None,
    **changes: Any,
) -> MixingTrainer:
    buffer = ReplayBuffer(12) if buffer is None else buffer
    streams = {**(new if isinstance(new, dict) else {"new": new or Points()}), "memory": buffer}
    if second:
        streams["second"] = buffer.second_draw()
    trainer = MixingTrainer(
        model or Classifier(),
        arguments(folder, **{"max_steps": 5, "per_device_train_batch_size": 3, **changes}),
        train_dataset=streams,
        mixing=mixing or ReplayRatio(0.45),
        batch_size=batch_size,
        methods=methods,
        max_tokens_per_micro_batch=max_tokens,
    )
    trainer.buffer = buffer
    return trainer


def spied(folder: str | Path, *methods: Method, **changes: Any) -> tuple[MixingTrainer, Spy]:
    spy = Spy()
    trainer = make_trainer(folder, [*methods, spy], **changes)
    trainer.train()
    return trainer, spy


def mean_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch)["loss"]


def gradient_of(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def step(model: nn.Module, gradient: list[torch.Tensor], rate: float) -> None:
    with torch.no_grad():
        for parameter, own in zip(model.parameters(), gradient, strict=True):
            parameter -= rate * own


def assert_same_weights(first: nn.Module, second: nn.Module, atol: float = 1e-12) -> None:
    torch.testing.assert_close(weights_of(first), weights_of(second), rtol=0, atol=atol)


def states_of(trainer: MixingTrainer) -> dict[str, np.ndarray]:
    """Gives the weights and what the buffer holds, to be compared to the bit."""
    return {"weights": weights_of(trainer.model).numpy(), **trainer.buffer.entries}
