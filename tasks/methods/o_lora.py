"""O-LoRA: a new adapter for each task, orthogonal to those of earlier tasks."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixer.policies.shared.ranges import check_range
from mixer.trainer.method import Method, RunContext, TaskContext
from mixer.utils.random_state import seeded
from tasks.methods.adapters import activate, is_adapted

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel

    from mixer.trainer.hooks import ForwardResult

_STARTS_AT_ZERO = (True, "gaussian")  # of `init_lora_weights`: B = 0, and the model below stays as it is


class OLoRA(Method):
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
        ValueError: If `weight` is negative; when a task begins, if the model has no LoRA adapter, or one that cannot be
            active with others.

    Example:
        >>> model = get_peft_model(model, LoraConfig(r=8, task_type="CAUSAL_LM"))  # doctest: +SKIP
        >>> run = ContinualRun(model, sequence, args, methods=[OLoRA()])  # doctest: +SKIP
    """

    adds_term = True
    adds_parameters = True

    def __init__(self, weight: float = 0.5):
        check_range("weight", weight, 0.0, float("inf"), "0.5 to 5 are usual, and 0 leaves adapters as they come")
        self.weight = float(weight)
        self._model: PeftModel | None = None
        self._adapter = ""

    def attach(self, run: RunContext) -> None:
        """Refuses models that cannot have an adapter for each task; see `Method.attach`."""
        self._run, self._model = run, None
        _checked(run.runs.model)

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Adds the adapter of the task and freezes earlier ones; see `Method.begin_task`."""
        self._model = model = _checked(model)
        first = next(iter(model.peft_config))
        self._adapter = f"task_{task.number}" if task.number else first
        if self._adapter not in model.peft_config:
            config = copy.deepcopy(model.peft_config[first])
            config.inference_mode = False
            with seeded(self._run.seed, task.number):
                model.add_adapter(self._adapter, config)
        self._activate()

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Makes all adapters active, of which the Trainer leaves one when it resumes; see `Method.load`."""
        if self._model is not None:
            self._activate()

    def _activate(self) -> None:
        model = self._model
        assert model is not None, "a task has begun"  # noqa: S101
        own = re.compile(rf"\.{re.escape(self._adapter)}(\.|$)")
        activate(model, list(model.peft_config), {name for name, _ in model.named_parameters() if own.search(name)})
        earlier = [_a_matrices(model, name) for name in model.peft_config if name != self._adapter]
        self._pairs = [
            (matrix, others[place]) for place, matrix in _a_matrices(model, self._adapter).items() for others in earlier
        ]

    def prepare(self, model: nn.Module) -> None:
        """Refuses a run that is no continual one; see `Method.prepare`."""
        if self._model is None:
            raise ValueError("OLoRA adds an adapter for each task: pass it to ContinualRun(methods=[OLoRA()]).")

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns this micro-batch's share of the term; see `Method.term`."""
        if not self._pairs:
            return None
        run = self._run
        share = trained.num_items * run.world_size / max(int(run.runs.items_by_stream.sum()), 1)
        return self.weight * share * torch.stack([overlap(own, other) for own, other in self._pairs]).sum()


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


def _a_matrices(model: nn.Module, adapter: str) -> dict[str, nn.Parameter]:
    """Returns the A matrices of an adapter by their place in the model."""
    own = re.compile(rf"\.lora_(embedding_)?A\.{re.escape(adapter)}(\.|$)")
    return {own.sub(".", name): one for name, one in model.named_parameters() if own.search(name)}


def _checked(model: nn.Module) -> PeftModel:
    """Returns the model, if each task can have an adapter of its own."""
    way_out = "Give get_peft_model(model, LoraConfig(...)) a configuration without"
    if not is_adapted(model):
        raise ValueError(
            f"OLoRA: model must have a LoRA adapter, got a {type(model).__name__}. Give get_peft_model(model, "
            "LoraConfig(...))."
        )
    config: Any = model.peft_config[next(iter(model.peft_config))]
    if config.peft_type != "LORA":
        raise ValueError(f"OLoRA: the adapter must be of LoRA, but is of {config.peft_type}. Use LoraConfig.")
    if config.modules_to_save:
        raise ValueError(
            f"OLoRA: all adapters are active, but only one can have modules_to_save={sorted(config.modules_to_save)}. "
            f"{way_out} modules_to_save, such as for task_type='CAUSAL_LM': classes are then words that the model "
            "writes."
        )
    if config.init_lora_weights not in _STARTS_AT_ZERO:
        raise ValueError(
            f"OLoRA: a new adapter must not change the model, but init_lora_weights={config.init_lora_weights!r} does. "
            f"{way_out} it, or with 'gaussian'."
        )
    return model
