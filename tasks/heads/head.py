"""The interface of a head, and the simplest one: all outputs exist from the start."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn
from transformers import TrainingArguments

from mixer.utils.errors import InvalidValueError
from tasks.heads.output_layer import output_layers
from tasks.task import TaskSequence

HeadKind = Literal["whole", "growing", "masked"]


class Head:
    """The whole head: it has outputs for all classes of all tasks from the start, and all of them compete.

    Args:
        sequence: The tasks.
        seed: Seed of new outputs.
    """

    kind: HeadKind = "whole"

    def __init__(self, sequence: TaskSequence, seed: int = 0):
        self.sequence, self.seed = sequence, seed

    def check(
        self, model: nn.Module, args: TrainingArguments, options: Mapping[str, Any], keeps_logits: bool = False
    ) -> None:
        """Refuses a run that the head does not support; changes nothing.

        Tasks without classes, as in language modelling, and models with an ambiguous output layer are accepted.

        Args:
            model: The model, not wrapped.
            args: The training arguments.
            options: Further arguments of the trainer, by name.
            keeps_logits: Whether a method compares logits with those of earlier tasks.

        Raises:
            ValueError: If something does not fit.
        """
        found = output_layers(model)
        if not found or any(task.classes is None for task in self.sequence):
            return
        num_outputs, num_classes = found[-1][1].out_features, self.sequence.num_classes
        if num_outputs < num_classes:
            raise InvalidValueError.about("num_labels", f"must be {num_classes}, or head 'growing', got {num_outputs}.")

    def _require_classes(self) -> None:
        without = [task.name for task in self.sequence if task.classes is None]
        if without:
            raise InvalidValueError.about(
                "head", f"must be 'whole', as the tasks {without} have no classes, got {self.kind!r}.", found=self.kind
            )

    def begin(self, model: nn.Module, number: int) -> None:
        """Makes the model ready for a task; a second call for the same task changes nothing.

        Args:
            model: The model, not wrapped; its trainer is made afterwards.
            number: The task's number, from 0.
        """

    def widen(self, state_dict: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Makes the state of an earlier optimizer fit a model that was changed since.

        Args:
            state_dict: What `state_dict` of the earlier optimizer gave.
            optimizer: One over the model as it is now, with its parameters in the same order.

        Returns:
            A state that `optimizer` can load; what was given if nothing changed.

        Raises:
            ValueError: If the state cannot be made to fit.
        """
        return state_dict

    def training(self) -> AbstractContextManager[None]:
        """Returns a context in which a task is trained on.

        Returns:
            The context; what it changes in the model is put back at its end.
        """
        return nullcontext()
