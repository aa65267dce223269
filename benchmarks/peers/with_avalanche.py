"""Avalanche: its template with a `ReplayPlugin` and a `ReservoirSamplingBuffer`.

Settings: those of its documentation. Data sets are TensorDatasets, permutations transforms of a data set, as in its own
PermutedMNIST; loaders without workers, its default; an evaluator of accuracies that logs nothing. As many samples of
memory as new ones (`batch_size_mem`). The optimizer's state goes on from task to task, which is its default.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from benchmarks.peers.torchvision_operators import define_operators

define_operators()  # before Avalanche imports torchvision

from avalanche.benchmarks import benchmark_from_datasets  # noqa: E402
from avalanche.benchmarks.utils.classification_dataset import (  # noqa: E402
    _make_taskaware_classification_dataset as make_dataset,  # as its own PermutedMNIST does
)
from avalanche.evaluation.metrics import accuracy_metrics  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin  # noqa: E402
from avalanche.training.storage_policy import ReservoirSamplingBuffer  # noqa: E402
from avalanche.training.supervised import Naive  # noqa: E402
from transformers import set_seed  # noqa: E402

from benchmarks.peers.clock import Clock  # noqa: E402
from benchmarks.peers.continual_work import (  # noqa: E402
    BATCH_SIZE,
    EVALUATION_BATCH_SIZE,
    PROTOCOLS,
    Protocol,
    read_tasks,
)


class Logits(nn.Module):
    """The perceptron as Avalanche calls models: inputs in, logits out.

    Args:
        model: The perceptron.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Gives the logits."""
        logits: Tensor = self.model(pixel_values=inputs).logits
        return logits


class Data:
    """Task data as Avalanche has them: each array once, tasks as subsets of it with a transform.

    Args:
        options: Of the contest.
    """

    def __init__(self, options: dict[str, Any]):
        self._tables: dict[int, TensorDataset] = {}
        tasks = read_tasks(options)
        self.train = [self._dataset(task.train) for task in tasks]
        self.test = [self._dataset(task.evaluation) for task in tasks]

    def _dataset(self, data: Any) -> Any:
        transform = None
        if hasattr(data, "transform"):
            transform, data = _permuting(data.transform.order), data.base
        indices = getattr(data, "indices", None)
        base = data if indices is None else data.base
        table = self._table(base)
        chosen = np.arange(len(base)) if indices is None else indices
        targets = base.labels[chosen].tolist()
        return make_dataset(Subset(table, chosen.tolist()), targets=targets, task_labels=0, transform=transform)

    def _table(self, base: Any) -> TensorDataset:
        if id(base) not in self._tables:
            columns = base.read_columns(np.arange(len(base)))
            self._tables[id(base)] = TensorDataset(columns["pixel_values"], columns["labels"])
        return self._tables[id(base)]


def _permuting(order: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda inputs: inputs[order]


def _new_optimizer(model: nn.Module, protocol: Protocol) -> torch.optim.Optimizer:
    if protocol.optim == "sgd":
        return torch.optim.SGD(model.parameters(), lr=protocol.learning_rate)
    return torch.optim.AdamW(model.parameters(), lr=protocol.learning_rate, weight_decay=0.0)


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Trains on all tasks; see `benchmarks.peers.with_continual_run.training`."""
    torch.set_num_threads(options["threads"])
    protocol, data = PROTOCOLS[options["protocol"]], Data(options)
    set_seed(options["seed"])
    clock = Clock()
    benchmark = benchmark_from_datasets(train=data.train, test=data.test)
    model = Logits(protocol.model())
    buffer = ReservoirSamplingBuffer(max_size=protocol.capacity)
    strategy = Naive(
        model=model,
        optimizer=_new_optimizer(model, protocol),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH_SIZE,
        train_epochs=protocol.epochs,
        eval_mb_size=EVALUATION_BATCH_SIZE,
        plugins=[ReplayPlugin(protocol.capacity, batch_size_mem=BATCH_SIZE, storage_policy=buffer)],
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
    )
    seconds = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        times = clock.stop()
        seconds.append(times["seconds"])
        clock.go_on()
    found = strategy.eval(benchmark.test_stream)
    accuracies = [value for name, value in found.items() if name.startswith("Top1_Acc_Exp")]
    assert len(accuracies) == len(data.test), f"{len(accuracies)} accuracies of {len(data.test)} tasks"
    return {"accuracy": 100 * float(np.mean(accuracies)), **times, "task_seconds": seconds}
