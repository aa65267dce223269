"""RanPAC: random projections of a frozen model's features, told apart by ridge regression over all tasks."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mixer import MixingTrainer
from mixer.utils.arrays import Float32Array, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.held_out import hold_out
from mixer.utils.random_state import seeded
from mixer.utils.ranges import check_count, check_range
from replay import extract_features
from tasks.methods.shared import TaskContext, TaskMethod, Tensors, last_linear, load_tensors, save_tensors
from tasks.sources.checks import require_labels
from tasks.task import Task

_STRENGTHS = tuple(10.0**power for power in range(-2, 6))
_ROWS = 1_024  # that are projected at once
_HELD = 5  # one row of so many takes part in the choice of λ


class RanPAC(TaskMethod):
    """Freezes the model, and tells classes apart by ridge regression on random projections of its features.

    McDonnell et al. 2023, "RanPAC: Random Projections and Pre-trained Models for Continual Learning",
    arXiv:2307.02251, algorithm 1: with `h = max(Wᵀ f, 0)` of features `f`, the input of the last linear layer, and
    a random `W`, each task adds to `G = Σ h hᵀ` and `C = Σ h yᵀ`, and a sample is of the class with the largest entry
    of `hᵀ (G + λI)⁻¹ C`. Of `strengths` λ is the one with the least squared error to `y` on a fifth of the task's rows,
    drawn by the run's seed and of each class as many as are due to it, which are left out of the sums for that. Here
    the sums of earlier tasks take part in the choice; in the authors' code those of the task alone do, and the fifth
    is what comes last.

    The classifier is beside the model: `score=Score(method.score, metric="accuracy")`. Of the model the last linear
    layer alone is still trained, and not used: `max_steps=1` in the training arguments saves the time. A task costs a
    forward of its samples and of each evaluation set, and kept are `num_projections²` numbers and those of `W` and `C`.

    Args:
        num_projections: Length of `h`; 10,000 in the paper.
        trains_first: Whether the model is trained on the first task, as its arguments say, and frozen after it.
        strengths: The λ to choose from, all above 0; a single one is not compared.

    Raises:
        ValueError: If a value is outside its range; at the start of training outside of a continual run, if samples
            have no classes, or if the model has no linear layer; at the end of a task, if features have another length.

    Example:
        >>> method = RanPAC(2_000)
        >>> options = {"methods": [method], "score": Score(method.score, metric="accuracy")}  # doctest: +SKIP
        >>> run = ContinualRun(model, sequence, args, **options)  # doctest: +SKIP
    """

    needs = frozenset({"whole weights"})
    needs_classes = True
    lasts_for_all_tasks = True

    def __init__(
        self, num_projections: int = 10_000, trains_first: bool = False, strengths: Sequence[float] = _STRENGTHS
    ):
        check_count("num_projections", num_projections, 1, "10,000 are usual")
        if not len(strengths):
            raise InvalidValueError.about("strengths", "must have one λ or more, but is empty; [1.0] chooses none.")
        for number, strength in enumerate(strengths):
            check_range(f"strengths[{number}]", strength, 1e-12, float("inf"), "powers of ten are usual")
        self.num_projections, self.trains_first = num_projections, trains_first
        self.strengths = [float(strength) for strength in strengths]
        self._state: Tensors = {}
        self._weights: Tensor | None = None  # of the state, once they are needed
        self._buffers: Tensors = {}  # of the frozen model
        self._among_own = False

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Freezes all but the last linear layer; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        self._among_own = task.scenario == "task"
        if not task.number:
            self._state, self._weights = {}, None
        own = {id(parameter) for parameter in last_linear(model, self.name).parameters()}
        self._buffers = {}
        if task.number or not self.trains_first:
            for parameter in model.parameters():
                parameter.requires_grad_(id(parameter) in own)
            self._buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        """Adds the task to the sums, and chooses λ; see `TaskMethod.end_task`."""
        for name, buffer in model.named_buffers():  # running statistics have moved with the steps
            if name in self._buffers:
                buffer.copy_(self._buffers[name])
        with seeded(self.run.seed, task.number):  # a collator may augment
            features = extract_features(model, task.dataset, self.run.passes.collator)
        self.learn(features, require_labels(task.dataset, self.name), seed=self.run.seed)
        self.task = None

    def learn(self, features: Float32Array, labels: Int64Array, seed: int = 0) -> None:
        """Adds samples to the sums, and chooses λ by a fifth of them; of each class one or more is not among these.

        Args:
            features: float32 `[num_samples, num_features]`.
            labels: int64 `[num_samples]`: their classes.
            seed: Seed of the projection, which the first samples draw, and of the rows that choose λ.

        Raises:
            ValueError: If features are not as long as those before, or not finite.
        """
        if not np.isfinite(features).all():
            raise InvalidValueError.about("features", "must be finite, but some are not.")
        if not self._state:
            self._state = self._empty(features.shape[1], seed)
        if (expected := len(self._state["projection"])) != features.shape[1]:
            raise InvalidValueError.about(
                "features", f"must have {expected} entries as before, got {features.shape[1]}."
            )
        self._widen(labels)
        num_held = min(-(-len(labels) // _HELD), len(labels) - len(np.unique(labels)))
        kept, held = hold_out(len(labels), num_held, seed % 2**63, labels)
        self._add(features[kept], labels[kept])
        if len(self.strengths) > 1 and len(held):
            error = partial(self._squared_error, features[held], labels[held])
            self._state["strength"].fill_(min(self.strengths, key=error))
        self._add(features[held], labels[held])

    def classify(self, features: Float32Array, among: Iterable[int] | None = None) -> Int64Array:
        """Predicts the classes of samples.

        Args:
            features: float32 `[num_samples, num_features]`.
            among: The classes to choose from; `None` for all. Those without a sample so far are never chosen.

        Returns:
            int64 `[num_samples]`; -1 where there is none to choose from.
        """
        if not self._state:
            return np.full(len(features), -1)
        if self._weights is None:
            self._weights = self._solved(float(self._state["strength"]))
        return self._classified(features, self._weights, among)

    def score(self, trainer: MixingTrainer, task: Task) -> float:
        """Returns the accuracy on a task, among its own classes in a task-incremental sequence.

        Args:
            trainer: The trainer.
            task: The task.
        """
        labels = require_labels(task.evaluation, self.name)
        if not self._state:
            return 0.0
        found = self.classify(extract_features(trainer, task.evaluation), task.classes if self._among_own else None)
        return float((found == labels).mean())

    def settings(self) -> str:
        """Returns the constants; see `Method.settings`."""
        return f"{self.name}({self.num_projections}, {self.trains_first}, {self.strengths})"

    def save(self, folder: Path) -> None:
        """Writes projection, sums and λ at the end of a task; see `Method.save`."""
        if self._state and self.task is None:
            save_tensors(folder, state=self._state)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads them; see `Method.load`."""
        if (saved := load_tensors(folder, self.run.device)) is not None:
            self._state, self._weights = saved["state"], None

    # ---- Sums ----

    def _empty(self, num_features: int, seed: int) -> Tensors:
        size, generator = self.num_projections, torch.Generator().manual_seed(seed)
        tensors = {
            "projection": torch.randn(num_features, size, generator=generator),
            "gram": torch.zeros(size, size),
            "sums": torch.zeros(size, 0),
            "counts": torch.zeros(0, dtype=torch.int64),
            "strength": torch.tensor(self.strengths[0], dtype=torch.float64),
        }
        device = "cpu" if self.task is None else self.run.device
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    def _widen(self, labels: Int64Array) -> None:
        """Extends the sums to the classes of labels."""
        missing = int(labels.max()) + 1 - len(self._state["counts"])
        if missing > 0:
            self._state["sums"] = nn.functional.pad(self._state["sums"], (0, missing))
            self._state["counts"] = nn.functional.pad(self._state["counts"], (0, missing))

    def _projected(self, features: Float32Array) -> Tensor:
        projection = self._state["projection"]
        return torch.relu(torch.from_numpy(features).to(projection) @ projection)

    def _add(self, features: Float32Array, labels: Int64Array) -> None:
        state, self._weights = self._state, None
        for first in range(0, len(labels), _ROWS):
            inputs = self._projected(features[first : first + _ROWS])
            own = torch.from_numpy(labels[first : first + _ROWS]).to(inputs.device)
            targets = nn.functional.one_hot(own, len(state["counts"]))
            state["gram"] += inputs.T @ inputs
            state["sums"] += inputs.T @ targets.to(inputs)
            state["counts"] += targets.sum(dim=0)

    def _solved(self, strength: float) -> Tensor:
        """Solves the regression, `[num_projections, num_classes]`."""
        gram = self._state["gram"].clone()
        gram.diagonal().add_(strength)
        weights: Tensor = torch.linalg.solve(gram, self._state["sums"])
        return weights

    def _squared_error(self, features: Float32Array, labels: Int64Array, strength: float) -> float:
        weights, error = self._solved(strength), 0.0
        for first in range(0, len(labels), _ROWS):
            found = (self._projected(features[first : first + _ROWS]) @ weights).double()
            own = torch.from_numpy(labels[first : first + _ROWS]).to(found.device)
            error += float((found - nn.functional.one_hot(own, found.shape[1])).square().sum())
        return error if np.isfinite(error) else np.inf

    def _classified(self, features: Float32Array, weights: Tensor, among: Iterable[int] | None) -> Int64Array:
        known = np.flatnonzero(self._state["counts"].cpu().numpy())
        known = known if among is None else known[np.isin(known, [*among])]
        if not len(known):
            return np.full(len(features), -1)
        parts = range(0, len(features), _ROWS)
        logits = [self._projected(features[first : first + _ROWS]) @ weights[:, known] for first in parts]
        found: Int64Array = known[torch.cat(logits).argmax(dim=1).cpu().numpy()]
        return found
