"""O-LoRA: a new adapter for each task, orthogonal to those of earlier tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixer.utils.ranges import check_range
from tasks.methods.adapters import AdapterMethod, activate, matrices_of

if TYPE_CHECKING:
    from peft import PeftModel

    from mixer.run.hooks import ForwardResult


class OLoRA(AdapterMethod):
    """Trains a new LoRA adapter for each task, and keeps it orthogonal to those of earlier tasks.

    Wang et al. 2023, "Orthogonal Subspace Learning for Language Model Continual Learning", arXiv:2310.14152: with
    `A_i` the `[r, num_inputs]` matrices of task i, task t adds `λ Σ_{i<t} Σ_{j,k} (A_i A_tᵀ)[j, k]²` to the loss.
    Adapters of earlier tasks are frozen and stay active, so that no task number is needed to predict.

    The model is that of `get_peft_model(model, LoraConfig(...))`: its adapter is that of the first task, and those of
    later tasks, `task_1`, `task_2` ..., have the same configuration. A step costs a little more with each task; merge
    them with PEFT's `merge_and_unload` when the run is over.

    Args:
        weight: `λ`, 0 or more; the paper uses 0.5 to 5.

    Raises:
        ValueError: If `weight` is negative; when the trainer is made, if the model has no LoRA adapter, or one that
            cannot be active with others.

    Example:
        >>> model = get_peft_model(model, LoraConfig(r=8, task_type="CAUSAL_LM"))  # doctest: +SKIP
        >>> run = ContinualRun(model, sequence, args, methods=[OLoRA()])  # doctest: +SKIP
    """

    def __init__(self, weight: float = 0.5):
        check_range("weight", weight, 0.0, float("inf"), "0.5 to 5 are usual, and 0 leaves adapters as they come")
        self.weight = float(weight)

    def activate_all(self, model: PeftModel, adapter: str) -> None:
        """Trains the task's own adapter, and pairs it with those of earlier tasks; see `AdapterMethod`."""
        activate(model, list(model.peft_config), matrices_of(model, adapter, ".").values())
        earlier = [matrices_of(model, name, "A") for name in model.peft_config if name != adapter]
        own = matrices_of(model, adapter, "A")
        self._pairs = [(matrix, others[place]) for place, matrix in own.items() for others in earlier]

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns this micro-batch's share of the term; see `Method.term`."""
        if not self._pairs:
            return None
        overlaps = torch.stack([overlap(own, other) for own, other in self._pairs])
        return self.run.mean_over_step(self.weight * overlaps.sum(), trained)


def overlap(matrix: Tensor, other: Tensor) -> Tensor:
    """Returns the squared Frobenius norm of the products of all rows of two matrices; 0 if they are orthogonal.

    Args:
        matrix: `[r, num_inputs]`.
        other: `[other_r, num_inputs]`.

    Example:
        >>> import torch
        >>> float(overlap(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [-2.0, 1.0]])))
        9.0
    """
    return (matrix.flatten(1) @ other.flatten(1).T).square().sum()
