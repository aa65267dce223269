"""What `benchmarks.continual.with_avalanche` makes of Avalanche's parts; imported only where that is installed.

Settings: those of its documentation. Data sets are TensorDatasets, permutations transforms of a data set, as in its own
PermutedMNIST; loaders without workers, its default; an evaluator of accuracies that logs nothing. As many samples of
memory as new ones (`batch_size_mem`). The optimizer's state goes on from task to task, which is its default.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from benchmarks.continual.torchvision_operators import define_operators

define_operators()  # before Avalanche imports torchvision

from avalanche.benchmarks.utils.classification_dataset import (  # noqa: E402
    _make_taskaware_classification_dataset as make_dataset,  # as its own PermutedMNIST does
)
from avalanche.evaluation.metrics import accuracy_metrics  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin  # noqa: E402
from avalanche.training.storage_policy import ReservoirSamplingBuffer  # noqa: E402
from avalanche.training.supervised import Naive  # noqa: E402

from tasks.task import TaskSequence  # noqa: E402

EVALUATION_BATCH_SIZE = 1_024


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
        tasks: Tasks of images.
    """

    def __init__(self, tasks: TaskSequence):
        self._tables: dict[int, TensorDataset] = {}
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


def new_optimizer(model: nn.Module, optim: str, learning_rate: float) -> torch.optim.Optimizer:
    """Makes the optimizer that the Trainer would.

    Args:
        model: The model.
        optim: The Trainer's name of it.
        learning_rate: Its rate.
    """
    if optim == "sgd":
        return torch.optim.SGD(model.parameters(), lr=learning_rate)
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)


def replay(capacity: int, batch_size: int) -> ReplayPlugin:
    """Replays a reservoir.

    Args:
        capacity: Its entries.
        batch_size: Those of a step.
    """
    buffer = ReservoirSamplingBuffer(max_size=capacity)
    return ReplayPlugin(capacity, batch_size_mem=batch_size, storage_policy=buffer)


def new_strategy(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int, num_epochs: int, plugins: Sequence[Any]
) -> Naive:
    """Makes what trains.

    Args:
        model: The model, which gives logits.
        optimizer: Its optimizer.
        batch_size: New samples of a step.
        num_epochs: Passes over a task.
        plugins: The method.
    """
    return Naive(
        model=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=batch_size,
        train_epochs=num_epochs,
        eval_mb_size=EVALUATION_BATCH_SIZE,
        plugins=[*plugins],
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
    )


def accuracies(strategy: Naive, tests: Any, num_tasks: int) -> list[float]:
    """Evaluates on all tasks.

    Args:
        strategy: What has trained.
        tests: The stream of their test sets.
        num_tasks: Their number.

    Returns:
        The accuracy of each.
    """
    values = strategy.eval(tests)
    found = [value for name, value in sorted(values.items()) if name.startswith("Top1_Acc_Exp")]
    assert len(found) == num_tasks, f"{len(found)} accuracies of {num_tasks} tasks"
    return found
