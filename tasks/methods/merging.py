"""Merging: after each task the model becomes a combination of the models of all tasks so far."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_range
from tasks.methods.shared import (
    TaskContext,
    TaskMethod,
    flat_weights,
    load_tensors,
    save_tensors,
    set_weights,
    trainable,
)

Rule = Literal["average", "ties", "magmax"]
Start = Literal["merged", "last", "initial"]


class Merging(TaskMethod):
    """Merges the models of all tasks so far at the end of each task; the merged one is evaluated and saved.

    With `τ_i` the trained parameters after task i minus those before the first task, `θ_0`, the model becomes
    `θ_0 + λ rule(τ_0 ... τ_t)`:

    - `"average"`: the mean (Ilharco et al. 2022, "Editing Models with Task Arithmetic", arXiv:2212.04089);
    - `"ties"`: trim, elect signs, average those that agree (Yadav et al. 2023, "TIES-Merging", arXiv:2306.01708,
      algorithm 1);
    - `"magmax"`: the entry of the largest magnitude (Marczak et al. 2024, "MagMax", arXiv:2407.06322).

    What is merged are the trained parameters: all of them, or those of adapters, whose matrices are then merged each
    for itself, as by PEFT's `add_weighted_adapter`. Buffers, such as running statistics, stay those of the last task.
    One copy of these parameters per task is kept in memory and at the end of each task; pass the method in a list, so
    that it lasts.

    Args:
        rule: How task vectors are combined.
        start: Where the next task begins: `"merged"`, the `"last"` task's own model as in MagMax, or the `"initial"`
            model as in TIES.
        density: For `"ties"`: the share of entries of a task vector, of the largest magnitude, that is kept.
        scale: `λ`.

    Raises:
        ValueError: If a value is outside its range; when a task begins or ends, if trained parameters are not those of
            earlier tasks.

    Example:
        >>> run = ContinualRun(model, sequence, args, methods=[Merging("ties")])  # doctest: +SKIP
    """

    needs = frozenset({"whole weights"})
    lasts_for_all_tasks = True

    def __init__(self, rule: Rule = "average", start: Start = "merged", density: float = 0.2, scale: float = 1.0):
        if rule not in _RULES:
            raise InvalidValueError.about("rule", f"must be one of {list(_RULES)}, got {rule!r}.")
        if start not in ("merged", "last", "initial"):
            raise InvalidValueError.about("start", f"must be 'merged', 'last' or 'initial', got {start!r}.")
        check_range("density", density, 0.0, 1.0, "0.2 is usual, and 1 keeps all entries")
        if density == 0:
            raise InvalidValueError.about("density", "must be above 0, got 0: nothing would be kept; 0.2 is usual.")
        check_range("scale", scale, 0.0, float("inf"), "1 is usual")
        self.rule, self.start, self.density, self.scale = rule, start, float(density), float(scale)
        self._merge = partial(ties, density=self.density) if rule == "ties" else _RULES[rule]
        self._initial: Tensor | None = None
        self._vectors: list[Tensor] = []

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Sets the model from which the task begins; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        if task.number == 0:
            self._initial, self._vectors = flat_weights(model), []
        initial = self._initial_of(model)
        del self._vectors[task.number :]
        if task.number and self.start != "merged":
            set_weights(model, initial + self._vectors[-1] if self.start == "last" else initial)

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        """Merges the model with those of earlier tasks; see `TaskMethod.end_task`."""
        self.task, initial = None, self._initial_of(model)
        self._vectors.append(flat_weights(model) - initial)
        set_weights(model, initial + self.scale * self._merge(torch.stack(self._vectors)))

    def _initial_of(self, model: nn.Module) -> Tensor:
        size = sum(parameter.numel() for parameter in trainable(model).values())
        if self._initial is None or len(self._initial) != size:
            found = 0 if self._initial is None else len(self._initial)
            raise InvalidValueError.about(
                "model", f"must train the same parameters in each task, not {found} and {size}."
            )
        return self._initial

    def save(self, folder: Path) -> None:
        """Writes the model before the first task, and the task vectors, at the end of a task; see `Method.save`."""
        if self._initial is not None and self.task is None:
            vectors = {str(number): vector for number, vector in enumerate(self._vectors)}
            save_tensors(folder, initial={"": self._initial}, vectors=vectors)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads them; see `Method.load`."""
        if (state := load_tensors(folder, "cpu")) is not None:
            vectors = state.get("vectors", {})
            self._initial = state["initial"][""]
            self._vectors = [vectors[str(number)] for number in range(len(vectors))]


def average(vectors: Tensor) -> Tensor:
    """Returns the mean of task vectors `[num_tasks, num_parameters]`."""
    return vectors.mean(dim=0)


def ties(vectors: Tensor, density: float) -> Tensor:
    """Trims task vectors, elects a sign for each parameter, and averages the entries of that sign.

    Args:
        vectors: `[num_tasks, num_parameters]`.
        density: The share of each vector's entries that is kept, those of the largest magnitude.

    Returns:
        `[num_parameters]`.

    Example:
        >>> ties(torch.tensor([[4.0, -1.0, 0.1], [-1.0, -3.0, 0.2]]), density=0.7).tolist()
        [4.0, -2.0, 0.0]
    """
    num_kept = round(density * vectors.shape[1])
    is_kept = torch.zeros_like(vectors, dtype=torch.bool)
    is_kept.scatter_(1, vectors.abs().topk(num_kept, dim=1).indices, value=True)
    trimmed = vectors.where(is_kept, 0.0)
    agrees = trimmed.sign() == trimmed.sum(dim=0).sign()
    agrees &= trimmed != 0
    return trimmed.where(agrees, 0.0).sum(dim=0) / agrees.sum(dim=0).clamp(min=1)


def magmax(vectors: Tensor) -> Tensor:
    """Returns the entry of the largest magnitude of task vectors `[num_tasks, num_parameters]`, for each parameter."""
    return vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))[0]


_RULES: dict[str, Callable[..., Tensor]] = {"average": average, "ties": ties, "magmax": magmax}
