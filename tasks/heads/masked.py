"""A head per task within one layer: in training, only the classes of the task of a row compete."""

import inspect
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from mixer.models.labels import IGNORED
from mixer.utils.errors import InvalidValueError
from tasks.heads.head import Head, HeadKind
from tasks.heads.output_layer import find_output_layer
from tasks.task import TaskSequence


class Masked(Head):
    """Takes the softmax of a row over the classes of its own task, as task-incremental learning does.

    van de Ven and Tolias 2019, "Three scenarios for continual learning", arXiv:1904.07734: a multi-headed output
    layer. Which task a row is of follows from its label, so that rows of a memory have their own task's mask. In the
    model's training forward, logits of other tasks are the lowest finite number; finite, so that the difference of two
    is 0. No gradient comes from them. Evaluation sees all logits as they are.
    """

    kind: HeadKind = "masked"
    _model: nn.Module | None = None

    def check(
        self, model: nn.Module, args: TrainingArguments, options: Mapping[str, Any], keeps_logits: bool = False
    ) -> None:
        """Refuses tasks that a label does not tell apart, and losses that take labels away; see `Head.check`."""
        self._require_classes()
        _check_apart(self.sequence)
        find_output_layer(model, "head='masked'")
        super().check(model, args, options, keeps_logits)
        has_own_loss = options.get("compute_loss_func") is not None
        given = {"label_smoothing_factor": args.label_smoothing_factor > 0, "compute_loss_func": has_own_loss}
        if names := [name for name, is_given in given.items() if is_given]:
            raise InvalidValueError.about(names[0], "must be left out with head='masked', which needs labels.")

    def begin(self, model: nn.Module, number: int) -> None:
        """Takes note of the model; see `Head.begin`."""
        self._model = model

    @contextmanager
    def training(self) -> Iterator[None]:
        """Masks while the model is trained; see `Head.training`."""
        if self._model is None:
            raise InvalidValueError("head='masked': call begin(model, number) before training().", option="head")
        _, layer = find_output_layer(self._model, "head='masked'")
        mask = _Mask(self._model, self.sequence, layer.out_features)
        # The handles of hooks are contexts that remove them.
        with (
            self._model.register_forward_pre_hook(mask.take_labels, with_kwargs=True),
            layer.register_forward_hook(mask.apply),
        ):
            yield


class _Mask:
    """The hooks.

    Labels are kept after the forward: with gradient checkpointing the layer may run again in the backward.
    """

    def __init__(self, model: nn.Module, sequence: TaskSequence, num_outputs: int):
        self._model, self._labels = model, torch.empty(0, dtype=torch.int64)
        groups = {label: task.classes for task in sequence for label in task.classes or ()}
        self._known = torch.tensor(sorted(groups))
        self._competes = torch.zeros(num_outputs + 1, num_outputs, dtype=torch.bool)
        self._competes[-1] = True  # rows whose label is ignored
        for label, group in groups.items():
            self._competes[label, list(group or ())] = True

    def take_labels(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Takes note of the labels of a micro-batch that is trained on."""
        if not self._model.training:
            return
        labels = kwargs.get("labels")
        if labels is None and args:
            labels = inspect.signature(model.forward).bind_partial(*args).arguments.get("labels")
        if not isinstance(labels, Tensor):
            raise InvalidValueError.about(
                "labels", "must reach the model with head='masked', which tells tasks by them, but are not there."
            )
        if labels.is_floating_point():
            raise InvalidValueError.about("labels", f"must be whole numbers, one per row, got {labels.dtype}.")
        self._known, self._competes = self._known.to(labels.device), self._competes.to(labels.device)
        strange = labels[(labels != IGNORED) & ~torch.isin(labels, self._known)]
        if len(strange):
            raise InvalidValueError.about(
                "labels", f"{sorted(set(strange.tolist()))[:10]} are of no task: add them to one, or say head='whole'."
            )
        self._labels = labels.reshape(-1)

    def apply(self, layer: nn.Module, args: Any, logits: Tensor) -> Tensor | None:
        """Masks logits, `[num_rows, ..., num_outputs]`."""
        if not self._model.training:
            return None
        labels = self._labels.to(logits.device)
        if logits.shape[:1] != labels.shape:
            raise InvalidValueError.about(
                "labels",
                f"must be one per row of logits, got {len(labels)} for {list(logits.shape)}. Say head='whole'.",
            )
        rows = self._competes.to(logits.device)[labels.masked_fill(labels == IGNORED, len(self._competes) - 1)]
        competes = rows.view(len(labels), *[1] * (logits.dim() - 2), -1)
        # Of float64 that of float32, which memories keep logits in.
        lowest = max(torch.finfo(logits.dtype).min, torch.finfo(torch.float32).min)
        return logits.masked_fill(~competes, lowest)


def _check_apart(sequence: TaskSequence) -> None:
    """Refuses two tasks that share some classes but not all."""
    for earlier, task in itertools.combinations(sequence, 2):
        own, other = set(task.classes or ()), set(earlier.classes or ())
        if own != other and own & other:
            raise InvalidValueError.about(
                "head",
                f"cannot be 'masked': {earlier.name!r} and {task.name!r} share classes. Use number_apart.",
                found=sorted(own & other),
            )
