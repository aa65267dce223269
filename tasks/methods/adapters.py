"""Adapters of PEFT: which a model has, which of them are active and trained, and a new one for each task."""

from __future__ import annotations

import copy
import re
import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn

from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import seeded
from tasks.methods.shared import TaskContext, TaskMethod

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel

    from mixer.trainer.method import RunContext

_STARTS_AT_ZERO = (True, "gaussian")  # of `init_lora_weights`: B = 0, and the model below stays as it is


def is_adapted(model: nn.Module) -> TypeGuard[PeftModel]:
    """Whether a model has adapters of PEFT, as `get_peft_model` gives it."""
    return "peft" in sys.modules and isinstance(model, sys.modules["peft"].PeftModel)


def activate(model: PeftModel, names: Sequence[str], trained: Iterable[nn.Parameter]) -> None:
    """Makes adapters active, all others inactive.

    Args:
        model: The model.
        names: The active adapters; their outputs add up.
        trained: The parameters that are trained; all others are frozen.
    """
    model.set_adapter(names[-1])
    if len(names) > 1:
        tuner: Any = model.base_model
        tuner.set_adapter(list(names))
    own = {id(parameter) for parameter in trained}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in own)


def matrices_of(model: nn.Module, adapter: str, kind: str) -> dict[str, nn.Parameter]:
    """Returns the matrices of an adapter by their names, without that of the adapter.

    Args:
        model: The model.
        adapter: Name of the adapter.
        kind: `"A"`, `"B"`, or `"."` for all.
    """
    own = re.compile(rf"(\.lora_(?:embedding_)?{kind})\.{re.escape(adapter)}(?=\.|$)")
    return {own.sub(r"\1", name): matrix for name, matrix in model.named_parameters() if own.search(name)}


def adapter_of_task(model: PeftModel, number: int, seed: int) -> str:
    """Returns the name of the adapter of a task: the model's first one for the first task, else one like it.

    Args:
        model: The model; the adapter is added if it is missing.
        number: Number of the task.
        seed: Seed of a new adapter.
    """
    first = next(iter(model.peft_config))
    name = f"task_{number}" if number else first
    if name not in model.peft_config:
        config = copy.deepcopy(model.peft_config[first])
        config.inference_mode = False
        with seeded(seed, number):
            model.add_adapter(name, config, autocast_adapter_dtype=are_wide(model))
    return name


def are_wide(model: PeftModel) -> bool:
    """Whether adapters beside a model of half precision are in single precision: as the first one is."""
    first = matrices_of(model, next(iter(model.peft_config)), ".").values()
    return not any(matrix.dtype in (torch.float16, torch.bfloat16) for matrix in first)


class AdapterMethod(TaskMethod):
    """A method that has a LoRA adapter for each task, of which `activate_all` makes all active together."""

    adds_parameters = True
    needs = frozenset({"whole weights"})
    _adapter: str | None = None  # of the present task

    def attach(self, run: RunContext) -> None:
        """Refuses models that cannot have an adapter for each task; see `Method.attach`."""
        super().attach(run)
        self._adapter = None
        _check_adapter_per_task(run.passes.model, self.name)

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Adds the adapter of the task; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        assert is_adapted(model), "it was checked"  # noqa: S101
        self._adapter = adapter_of_task(model, task.number, self.run.seed)
        self.activate_all(model, self._adapter)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Makes all adapters active, of which the Trainer leaves one when it resumes; see `Method.load`."""
        model = self.run.passes.model
        if self._adapter is not None and is_adapted(model):
            self.activate_all(model, self._adapter)

    @abstractmethod
    def activate_all(self, model: PeftModel, adapter: str) -> None:
        """Makes all adapters active, and the parameters of the task's own trained."""


def _check_adapter_per_task(model: nn.Module, asked_by: str) -> None:
    """Raises a `ValueError` for models that cannot have a LoRA adapter for each task, active together."""
    if not is_adapted(model):
        raise InvalidValueError.about("model", f"must have a LoRA adapter for {asked_by}: use get_peft_model.")
    config: Any = model.peft_config[next(iter(model.peft_config))]
    if config.peft_type != "LORA":
        raise ValueError(f"{asked_by}: the adapter must be of LoRA, but is of {config.peft_type}. Use LoraConfig.")
    if config.modules_to_save:
        raise InvalidValueError.about("modules_to_save", f"must be left out of LoraConfig for {asked_by}.")
    if config.init_lora_weights not in _STARTS_AT_ZERO:
        raise InvalidValueError.about("init_lora_weights", f"must leave the model as it is for {asked_by}.")
