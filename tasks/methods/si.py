"""Synaptic intelligence: weights are held by how much they have lowered the loss on the way."""

from collections.abc import Mapping

import torch
from torch import nn

from mixer.loading.loaded_step import StepBatch
from mixer.utils.ranges import check_range, check_temperature
from tasks.methods.shared import TaskContext, Tensors, WeightMethod, copied, trainable, wide


class SI(WeightMethod):
    """Holds each weight near its value at the end of the last task, the more it has lowered the earlier tasks' losses.

    Zenke et al. 2017, "Continual Learning Through Synaptic Intelligence", arXiv:1703.04200, equations 3 to 5: the loss
    gets `c Σ Ω (θ − θ*)²`. In each step a weight's part in the fall of the loss is `ω ← ω − g Δθ`, with `g` the
    gradient before this penalty and clipping; at the end of a task `Ω ← Ω + max(ω, 0) / (Δ² + ξ)`, with `Δ` the way of
    the weight over the task. Two more numbers a weight and three while a task is trained; no memory of samples is
    needed.

    Args:
        strength: `c`, 0 or more; 0.1 to 10 are usual.
        damping: `ξ`, above 0, so that weights that hardly moved are held by little.

    Raises:
        ValueError: If a value is outside its range; at the start of training outside of a continual run.
    """

    def __init__(self, strength: float = 1.0, damping: float = 0.1):
        check_range("strength", strength, 0.0, float("inf"), "0.1 to 10 are usual, and 0 holds nothing")
        check_temperature("damping", damping, "0.1 is usual")
        self.strength, self.damping = float(strength), float(damping)
        super().__init__()
        self._path: Tensors = {}  # ω of the present task
        self._gradients: Tensors = {}  # of the present step

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Starts the path of a task; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        self._start, self._gradients = copied(model), {}
        self._path = {name: torch.zeros_like(weight, dtype=wide(weight)) for name, weight in self._start.items()}

    def end_backward(self, model: nn.Module) -> None:
        """Notes the gradient and adds that of the penalty; see `Method.end_backward`."""
        passes = self.run.passes
        scale, parameters = float(passes.loss_scale()), trainable(passes.model)
        self._gradients = {name: own.grad / scale for name, own in parameters.items() if own.grad is not None}
        self._before = copied(passes.model)
        self._anchor.add_gradient(self.run, 2 * self.strength)

    def close(self, batch: StepBatch) -> None:
        """Adds the step to the path; see `Method.close`."""
        parameters = trainable(self.run.passes.model)
        for name, gradient in self._gradients.items():
            moved = parameters[name].detach() - self._before[name]
            self._path[name] -= torch.where(moved == 0, 0.0, gradient * moved)  # nor if the gradient is not finite
        self._gradients = self._before = {}

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        """Computes importances from the path; see `TaskMethod.end_task`."""
        now = trainable(model)
        self._anchor.hold(
            model,
            {
                name: path.clamp(min=0.0) / ((now[name].detach() - self._start[name]).square() + self.damping)
                for name, path in self._path.items()
            },
        )

    def further_state(self) -> dict[str, Tensors]:
        """Returns the path so far; see `WeightMethod.further_state`."""
        return {"path": self._path}

    def load_further(self, state: Mapping[str, Tensors]) -> None:
        """Reads it; see `WeightMethod.load_further`."""
        self._path = state.get("path", {})
