"""Replacements for a layer's forward that separate its gradients by row, per kind of layer."""

import inspect
import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from transformers.pytorch_utils import Conv1D

from mixer.gradients.probe.reading import Desk, Reading, product
from mixer.gradients.probe.row_streams import at_least_float32


class Capture(ABC):
    """A layer of a known kind.

    While it is installed, it replaces the layer's `forward`; without a reading it behaves like the original.

    Args:
        module: The layer.
        indices: Numbers of its probed parameters, by their names in the layer.
        desk: Access to the reading of the present micro-batch.
    """

    plain: ClassVar[tuple[Callable[..., Any], ...]] = ()  # torch's own forward methods of this kind

    def __init__(self, module: nn.Module, indices: Mapping[str, int], desk: Desk):
        self._module = weakref.ref(module)  # the layer holds this while it is installed
        self.indices = dict(indices)
        self._desk = desk
        # Whether other forward methods can be run in parts: known after a trial.
        self._is_alike: bool | None = True if type(module).forward in self.plain else None

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


def run_with(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Runs a layer's own forward with other tensors in place of its parameters."""
    parameters: dict[str, Any] = module._parameters  # noqa: SLF001  # to set tensors that are no parameters
    own = {name: parameters[name] for name in tensors}
    try:
        parameters.update(tensors)
        result: Tensor = type(module).forward(module, inputs)
    finally:
        parameters.update(own)
    return result


def gives(run: Callable[[], Tensor], expected: Tensor, **tolerances: float) -> bool:
    """Whether a trial succeeds and has the expected result."""
    try:
        result = run()
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return result.shape == expected.shape and torch.allclose(result, expected, equal_nan=True, **tolerances)


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
        weight = module.weight.T if isinstance(module, Conv1D) else module.weight
        result: Tensor = LinearByRow.apply(inputs, weight, module.bias, self, reading)  # type: ignore[no-untyped-call]
        return result

    def take_matrix(self, reading: Reading, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Records the rows' inputs and output gradients, and returns the weight gradient `[height, width]`."""
        if "weight" not in self.indices:  # it may be computed from a parameter of another layer
            return product(inputs, gradients)
        if isinstance(self.module, Conv1D):
            return reading.matrix(self.indices["weight"], gradients, inputs).T
        return reading.matrix(self.indices["weight"], inputs, gradients)

    def take_bias(self, reading: Reading, per_row: Tensor) -> None:
        """Records the rows' bias gradients, `[num_rows, height]`."""
        if "bias" in self.indices:
            reading.vector(self.indices["bias"], per_row)


class LinearByRow(Function):
    """A matrix product `y = x Wᵀ + b` with a weight gradient made of pieces.

    Together the pieces cost as much as the weight gradient, which is then their sum, so no work is done twice.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, capture: "LinearCapture", reading: Reading
    ) -> Tensor:
        """Multiplies.

        Args:
            ctx: Values for the backward pass.
            inputs: `[..., width]`.
            weight: `[height, width]`.
            bias: `[height]`, or `None`.
            capture: Takes the gradients of the rows.
            reading: The reading of the micro-batch.

        Returns:
            `[..., height]`.
        """
        dtype = _dtype_of_product(inputs)
        own_inputs, own_weight = inputs.to(dtype), weight.to(dtype)
        ctx.save_for_backward(own_inputs, own_weight)
        ctx.capture, ctx.reading = capture, reading
        ctx.input_dtype, ctx.weight_dtype = inputs.dtype, weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return torch.nn.functional.linear(own_inputs, own_weight, None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        """Returns the gradients, and passes on the factors of the weight gradient."""
        check_once()
        if gradient is None:
            return (None,) * 5
        inputs, weight = ctx.saved_tensors
        need_inputs, need_weight, need_bias = ctx.needs_input_grad[:3]
        of_inputs = of_weight = of_bias = None
        with torch.autocast(gradient.device.type, enabled=False):
            if need_inputs:
                of_inputs = (gradient @ weight).to(ctx.input_dtype)
            split = ctx.reading.rows.split  # the outputs of a layer have the same rows as its inputs
            rows = split(gradient)
            if need_weight:
                of_weight = ctx.capture.take_matrix(ctx.reading, split(inputs), rows).to(ctx.weight_dtype)
            if need_bias:
                per_row = rows.sum(1, dtype=at_least_float32(rows.dtype))
                ctx.capture.take_bias(ctx.reading, per_row)
                of_bias = per_row.sum(0).to(ctx.bias_dtype)
        return of_inputs, of_weight, of_bias, None, None


def check_once() -> None:
    """Refuses a backward pass that is differentiated itself."""
    if torch.is_grad_enabled():  # in a backward only with create_graph=True
        raise RuntimeError(
            "The loss differentiates through gradients (create_graph=True), but gradients are separated by row only in "
            "a plain backward. Use homogeneous=True, with micro-batches of one stream each."
        )


def _dtype_of_product(inputs: Tensor) -> torch.dtype:
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind) and inputs.dtype != torch.float64:  # which autocast leaves alone
        return torch.get_autocast_dtype(kind)
    return inputs.dtype
