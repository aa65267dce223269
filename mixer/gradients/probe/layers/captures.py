"""Replacements for a layer's forward that separate its gradients by row, per kind of layer."""

import inspect
import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mixer.gradients.probe.layers.functions import LinearByRow
from mixer.gradients.probe.products import product
from mixer.gradients.probe.reading import Desk, Reading
from mixer.gradients.probe.rows import Rows


class Capture(ABC):
    """A layer of a known kind.

    While it is installed, it replaces the layer's `forward`; without a reading it behaves like the original.

    Args:
        module: The layer.
        indices: Numbers of its probed parameters, by their names in the layer.
        desk: Access to the reading of the present micro-batch.
    """

    def __init__(self, module: nn.Module, indices: Mapping[str, int], desk: Desk):
        self._module = weakref.ref(module)  # the layer holds this while it is installed
        self.indices = dict(indices)
        self._desk = desk

    @staticmethod
    @abstractmethod
    def knows(module: nn.Module) -> bool:
        """Whether the layer is of this kind."""

    @property
    def module(self) -> nn.Module:
        """The layer."""
        module = self._module()
        assert module is not None, "a probe's model exists while the probe runs"  # noqa: S101
        return module

    def install(self) -> None:
        """Replaces the layer's own forward."""
        self.module.__dict__["forward"] = self

    def remove(self) -> None:
        """Restores the layer's own forward."""
        self.module.__dict__.pop("forward", None)

    def __reduce__(self) -> tuple[Callable[[nn.Module], Any], tuple[nn.Module]]:
        # A copy of a model made during a probed step runs unprobed.
        return own_forward, (self.module,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer."""
        module, reading = self.module, self._desk.reading
        if reading is not None:
            inputs = self._only_input(args, kwargs)
            if not torch.is_grad_enabled():
                self._foresee(inputs, reading)
            elif inputs is None or (result := self._read(module, inputs, reading)) is None:
                reading.failed.update(self.indices.values())
            else:
                return result
        return type(module).forward(module, *args, **kwargs)

    def _only_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the layer's only argument; `None` if there are more."""
        if len(args) + len(kwargs) != 1:
            return None
        if args:
            return args[0]
        return kwargs.get(list(inspect.signature(type(self.module).forward).parameters)[1])

    def _foresee(self, inputs: Tensor | None, reading: Reading) -> None:
        """Notes a use without a gradient: checkpointing may repeat it, with a gradient, in the backward pass."""
        return

    @abstractmethod
    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        """Runs the layer so that its gradients are read; `None` if its rows cannot be separated."""


def own_forward(module: nn.Module) -> Any:
    """Returns the forward method of the layer's class."""
    return types.MethodType(type(module).forward, module)


class LinearCapture(Capture):
    """`nn.Linear`, and `Conv1D` of transformers, which has a transposed weight."""

    @staticmethod
    def knows(module: nn.Module) -> bool:
        """See `Capture.knows`."""
        return type(module).forward in (nn.Linear.forward, Conv1D.forward) and isinstance(module, nn.Linear | Conv1D)

    def _foresee(self, inputs: Tensor | None, reading: Reading) -> None:
        if "weight" in self.indices:
            reading.note_use(self.indices["weight"])

    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        if reading.rows.split(inputs) is None:
            return None
        self._foresee(inputs, reading)
        is_transposed = isinstance(module, Conv1D)

        def take_matrix(own_inputs: Tensor, gradients: Tensor) -> Tensor:
            if "weight" not in self.indices:  # it may be computed from a parameter of another layer
                return product(own_inputs, gradients)
            if is_transposed:
                return reading.matrix(self.indices["weight"], gradients, own_inputs).T
            return reading.matrix(self.indices["weight"], own_inputs, gradients)

        def take_bias(per_row: Tensor) -> None:
            if "bias" in self.indices:
                reading.vector(self.indices["bias"], per_row)

        weight = module.weight.T if is_transposed else module.weight
        result: Tensor = LinearByRow.apply(  # type: ignore[no-untyped-call]
            inputs, weight, module.bias, _splitter(reading.rows), take_matrix, take_bias
        )
        return result


def _splitter(rows: Rows) -> Callable[[Tensor], Tensor]:
    def split(values: Tensor) -> Tensor:
        result = rows.split(values)
        assert result is not None, "outputs of a layer have the same rows as its inputs"  # noqa: S101
        return result

    return split
