"""A growing head: outputs for new classes are added with their task."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainingArguments

from mixer.utils.errors import InvalidValueError
from tasks.heads.head import Head, HeadKind
from tasks.heads.output_layer import find_output_layer, owners, set_num_labels
from tasks.task import TaskSequence


class Growing(Head):
    """Gives the output layer, before each task, as many outputs it needs for the highest label that comes up.

    That is the highest of its classes and of the labels that it is trained on, as with blurred boundaries.

    Outputs that are there stay as they are, to the bit. New ones begin as the model begins its linear layers, drawn
    on the CPU by (seed, task) alone: they are the same on every rank, on every device and after a resume, however many
    tasks it skips. There are two outputs at least, as models of transformers take a single one for a regression.

    Args:
        sequence: The tasks.
        seed: Seed of the new outputs' beginnings.
    """

    kind: HeadKind = "growing"

    def __init__(self, sequence: TaskSequence, seed: int):
        super().__init__(sequence, seed)
        highest = [max((0, *(task.classes or ()), *(task.labels_trained_on or ()))) for task in sequence]
        self.sizes = [max(size, 2) for size in (np.maximum.accumulate(highest) + 1).tolist()]
        self._layer: nn.Linear | None = None
        self._earlier: set[int] = set()  # numbers of outputs that the layer had

    def check(
        self, model: nn.Module, args: TrainingArguments, options: Mapping[str, Any], keeps_logits: bool = False
    ) -> None:
        """Refuses tasks without classes, and methods for which logits must not change in number; see `Head.check`."""
        self._require_classes()
        _, layer = find_output_layer(model, "head='growing'")
        first = max(layer.out_features, self.sizes[0])
        if keeps_logits and self.sizes[-1] > first:
            raise InvalidValueError.about(
                "head",
                f"must be 'whole', with num_labels={self.sizes[-1]}: a method compares logits with earlier ones.",
            )

    def begin(self, model: nn.Module, number: int) -> None:
        """Grows the output layer; see `Head.begin`."""
        name, self._layer = find_output_layer(model, "head='growing'")
        for task, size in enumerate(self.sizes[: number + 1]):  # one by one, so that values never hang on the way
            if size > self._layer.out_features:
                self._earlier.add(self._layer.out_features)
                _grow(self._layer, self._draw(model, name, self._layer, size, task))
                set_num_labels(model, name, size)

    def _draw(self, model: nn.Module, name: str, layer: nn.Linear, size: int, task: int) -> nn.Linear:
        """Returns a layer of the new size as the model begins such layers."""
        dtype = torch.promote_types(layer.weight.dtype, torch.float32)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            # torch.manual_seed would seed the accelerators as well, which nothing forks here.
            state = np.random.SeedSequence((self.seed, task)).generate_state(1, np.uint64)
            torch.default_generator.manual_seed(int(state[0] >> np.uint64(1)))
            fresh = nn.Linear(layer.in_features, size, layer.bias is not None, device="cpu", dtype=dtype)
            initialisers = [owner for owner in owners(model, name) if isinstance(owner, PreTrainedModel)]
            if initialisers:
                initialisers[-1]._init_weights(fresh)  # type: ignore[no-untyped-call]  # the hook of models  # noqa: SLF001 of transformers' models
        return fresh

    def widen(self, state_dict: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Has the state of new outputs begin with zeros; see `Head.widen`."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        if len(keys) != len(parameters):
            raise InvalidValueError.about(
                "state_dict", f"must be of {len(parameters)} parameters, but has {len(keys)}: freeze the same ones."
            )
        grown = () if self._layer is None else tuple(self._layer.parameters(recurse=False))
        state = dict(state_dict["state"])
        for key, parameter in zip(keys, parameters, strict=True):
            if key in state and any(parameter is layer_parameter for layer_parameter in grown):
                state[key] = {name: self._widened(value, parameter, name) for name, value in state[key].items()}
        return {**state_dict, "state": state}

    def _widened(self, value: Any, parameter: Tensor, name: str) -> Any:
        """Pads what has the shape that the parameter had."""
        if not isinstance(value, Tensor) or value.shape == parameter.shape or not self._earlier & set(value.shape):
            return value
        if value.shape[1:] != parameter.shape[1:] or value.shape[0] not in self._earlier:
            if value.numel() == 1 or value.shape == parameter.shape[1:]:
                return value  # a count, or one number an input
            raise InvalidValueError.about(
                "optimizer", f"must be 'fresh', as the state {name!r}, {list(value.shape)}, cannot grow with the layer."
            )
        padded = value.new_zeros(parameter.shape)
        padded[: len(value)] = value
        return padded


def _grow(layer: nn.Linear, fresh: nn.Linear) -> None:
    """Puts the first rows of a layer in the place of those of a larger one, and takes that one's parameters."""
    for name, old in list(layer.named_parameters(recurse=False)):
        new = fresh.get_parameter(name).detach().to(old.device, old.dtype)
        new[: len(old)] = old.detach()
        setattr(layer, name, nn.Parameter(new, requires_grad=old.requires_grad))
    layer.out_features = fresh.out_features
