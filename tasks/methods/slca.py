"""SLCA: a slow learning rate below the output layer, which is aligned with all classes after each task."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mixer import MixingTrainer
from mixer.mixture.step_plan import StepPlan
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import seeded
from mixer.utils.ranges import check_count, check_range, check_temperature
from replay import extract_features
from tasks.methods.shared import TaskContext, TaskMethod, class_logits, last_linear, load_tensors, save_tensors
from tasks.score import accuracy
from tasks.sources.checks import require_labels
from tasks.task import Task

_MOMENTUM = 0.9


class Gaussian(NamedTuple):
    """The features of a class in a task.

    Args:
        mean: `[num_features]`.
        factor: `[rank, num_features]`; factorᵀ · factor is the covariance.
    """

    mean: Tensor
    factor: Tensor


class SLCA(TaskMethod):
    """Trains classes of a task among themselves, and aligns the output layer with features of all classes after it.

    Zhang et al. 2023, "SLCA: Slow Learner with Classifier Alignment for Continual Learning on a Pre-trained Model",
    arXiv:2303.05118: of each class the mean and covariance of its features, the input of the last linear
    layer, are kept. After a task as many features of each class so far are drawn from its Gaussian, and the layer is
    trained on them by the cross entropy of `logits / (τ ‖logits‖)`. A class that comes again has a Gaussian for each
    task. The other half of the paper is a slow encoder: `trainer_class=slow_encoder(0.01)`.

    Outputs of classes to come are not trained, and may be the largest: score by `Score(method.score,
    metric="accuracy")`, which chooses among the classes so far, as the paper does.

    The authors' code has more than that. Instead of `‖logits‖`, over all classes so far, it divides by the mean over
    tasks of the length of each task's logits, which is about √(number of tasks) smaller: a smaller `temperature` comes
    near it. It shrinks the mean of a class of task i of t by `0.9 + 0.1 i/t`, adds 1e-4 to the diagonal of covariances,
    decays the layer's weights, and does not align after the first task.

    Args:
        num_samples: Features of each Gaussian in an epoch of the alignment, and of all classes in one of its steps.
        num_epochs: Epochs of the alignment; 0 leaves it out.
        learning_rate: Its learning rate at first, by SGD with a momentum of 0.9; it falls to 0 by a cosine.
        temperature: `τ`, above 0.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made, if there is a memory; at the start of
            training outside of a continual run, if samples have no classes, in a task-incremental sequence, or if the
            model has no linear layer or its last one is frozen.

    Example:
        >>> method = SLCA()
        >>> options = {"methods": [method], "score": Score(method.score, metric="accuracy")}  # doctest: +SKIP
        >>> run = ContinualRun(model, sequence, args, trainer_class=slow_encoder(0.01), **options)  # doctest: +SKIP
    """

    needs = frozenset({"whole weights"})
    needs_classes = needs_all_logits = True
    lasts_for_all_tasks = True

    def __init__(
        self, num_samples: int = 256, num_epochs: int = 5, learning_rate: float = 0.01, temperature: float = 0.1
    ):
        check_count("num_samples", num_samples, 1, "256 are usual")
        check_count("num_epochs", num_epochs, 0, "5 are usual, and 0 aligns nothing")
        check_range("learning_rate", learning_rate, 0.0, float("inf"), "0.01 is usual")
        check_temperature("temperature", temperature, "0.1 is usual")
        self.num_samples, self.num_epochs = num_samples, num_epochs
        self.learning_rate, self.temperature = float(learning_rate), float(temperature)
        self._gaussians: dict[tuple[int, int], Gaussian] = {}  # by number of the task and class
        self._own: list[int] = []  # classes of the task

    def attach(self, run: RunContext) -> None:
        """Refuses a memory; see `Method.attach`."""
        if run.memories:
            raise InvalidValueError.about("memory", f"must be left out with {self.name}, or use ERACE.")
        super().attach(run)

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Takes note of the task's classes; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        if not task.number:
            self._gaussians = {}
        self._own = sorted(task.classes or ())  # which a sequence may have in an order by seed
        if not any(parameter.requires_grad for parameter in last_linear(model, self.name).parameters()):
            raise InvalidValueError.about("model", f"must have a last linear layer that is trained, for {self.name}.")

    def factors(self, plan: StepPlan, items: Int64Array) -> FloatArray:
        """Leaves out the model's own loss; see `Method.factors`."""
        return np.zeros(len(items))

    def term(self, trained: ForwardResult) -> Tensor:
        """Returns the loss among the task's own classes, this rank's part; see `Method.term`."""
        logits = class_logits(trained.output, len(trained.micro.stream_ids), self.name)[:, self._own]
        labels = self.run.passes.prepare_inputs(trained.micro.inputs)["labels"]
        places = torch.searchsorted(torch.tensor(self._own, device=labels.device), labels)
        return self.run.mean_over_step(nn.functional.cross_entropy(logits, places, reduction="none"), trained)

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        """Takes the Gaussians of the task, and aligns the output layer; see `TaskMethod.end_task`."""
        with seeded(self.run.seed, task.number):  # a collator may augment
            features = torch.from_numpy(extract_features(model, task.dataset, self.run.passes.collator))
        labels = require_labels(task.dataset, self.name)
        for label in self._own:
            self._gaussians[task.number, label] = gaussian(features[torch.from_numpy(labels == label)])
        self.task = None
        with seeded(self.run.seed, task.number, 1):
            self.align(last_linear(model, self.name))

    def align(self, layer: nn.Linear) -> None:
        """Trains an output layer on features that are drawn of all classes so far.

        Args:
            layer: The layer, `[num_classes, num_features]`.
        """
        drawn_of = torch.tensor([label for _, label in self._gaussians]).repeat_interleave(self.num_samples)
        known = torch.tensor(sorted({label for _, label in self._gaussians}))
        targets = torch.searchsorted(known, drawn_of)
        trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=self.learning_rate, momentum=_MOMENTUM)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(self.num_epochs, 1))
        for _ in range(self.num_epochs):
            features = torch.cat([drawn(each, self.num_samples) for each in self._gaussians.values()])
            for rows in torch.split(torch.randperm(len(targets)), self.num_samples):
                logits = layer(features[rows].to(layer.weight))[:, known.to(layer.weight.device)]
                optimizer.zero_grad()
                normalized_loss(logits, targets[rows].to(logits.device), self.temperature).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            schedule.step()
        optimizer.zero_grad()

    def score(self, trainer: MixingTrainer, task: Task) -> float:
        """Returns the accuracy on a task, among the classes so far.

        Args:
            trainer: The trainer.
            task: The task.
        """
        known = {label for _, label in self._gaussians}.union(self._own)
        return accuracy(trainer, task.evaluation, sorted(known))

    def settings(self) -> str:
        """Returns the constants; see `Method.settings`."""
        return f"{self.name}({self.num_samples}, {self.num_epochs}, {self.learning_rate}, {self.temperature})"

    def save(self, folder: Path) -> None:
        """Writes the Gaussians at the end of a task; see `Method.save`."""
        if self._gaussians and self.task is None:
            groups = {f"{number}-{label}": each._asdict() for (number, label), each in self._gaussians.items()}
            save_tensors(folder, **groups)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads them; see `Method.load`."""
        if (saved := load_tensors(folder, "cpu")) is not None:
            keyed = {tuple(map(int, key.split("-"))): Gaussian(**tensors) for key, tensors in saved.items()}
            self._gaussians = {(key[0], key[1]): keyed[key] for key in sorted(keyed)}


def gaussian(features: Tensor) -> Gaussian:
    """Computes mean and covariance of features, of no more numbers than there are features.

    Args:
        features: `[num_samples, num_features]`; a single one has no covariance.

    Example:
        >>> mean, factor = gaussian(torch.tensor([[1.0, 0.0], [3.0, 4.0]]))
        >>> mean.tolist(), (factor.T @ factor).round().tolist()
        ([2.0, 2.0], [[2.0, 4.0], [4.0, 8.0]])
    """
    mean = features.mean(dim=0)
    centred = (features - mean).double() / max(len(features) - 1, 1) ** 0.5
    return Gaussian(mean, torch.linalg.qr(centred, mode="r").R.float())


def drawn(of: Gaussian, num_samples: int) -> Tensor:
    """Draws features of a class with torch's global generator, `[num_samples, num_features]`."""
    return of.mean + torch.randn(num_samples, len(of.factor)) @ of.factor


def normalized_loss(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Computes the mean cross entropy of logits of length 1 over the temperature.

    Args:
        logits: `[num_rows, num_classes]`.
        targets: int64 `[num_rows]`.
        temperature: The temperature.
    """
    return nn.functional.cross_entropy(nn.functional.normalize(logits, dim=1) / temperature, targets)


def slow_encoder(rate: float, trainer_class: type[MixingTrainer] = MixingTrainer) -> type[MixingTrainer]:
    """Makes a trainer class that trains all but the last linear layer at a part of the learning rate.

    Args:
        rate: The part, above 0; 0.01 in the paper.
        trainer_class: The trainer; it keeps what else it does.

    Returns:
        A subclass for `ContinualRun(trainer_class=...)`.

    Raises:
        ValueError: If `rate` is outside its range; at the start of training, if the model has no linear layer.
    """
    check_range("rate", rate, 1e-12, 1.0, "0.01 is usual, and 1 is as fast as the output layer")

    def create_optimizer(self: Any, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = trainer_class.create_optimizer(self, *args, **kwargs)
        if is_new:
            _split(optimizer, last_linear(self.model, "slow_encoder").parameters(), rate)
        return optimizer

    return type("SlowEncoder", (trainer_class,), {"create_optimizer": create_optimizer})


def _split(optimizer: torch.optim.Optimizer, fast: Iterable[nn.Parameter], rate: float) -> None:
    """Puts parameters that are not fast into groups of their own."""
    own = {id(parameter) for parameter in fast}
    for group in [*optimizer.param_groups]:
        slow = [parameter for parameter in group["params"] if id(parameter) not in own]
        group["params"] = [parameter for parameter in group["params"] if id(parameter) in own]
        optimizer.add_param_group({**group, "params": slow, "lr": rate * group["lr"]})
