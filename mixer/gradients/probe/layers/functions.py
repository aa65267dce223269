"""Autograd functions that separate the rows of a batch and return the same gradient as the plain ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mixer.gradients.probe.rows import at_least_float32

TakeMatrix = Callable[[Tensor, Tensor], Tensor]
TakeRows = Callable[[Tensor], None]


class LinearByRow(Function):
    """A matrix product `y = x Wᵀ + b` with a weight gradient made of pieces.

    Together the pieces cost as much as the weight gradient, which is then their sum, so no work is done twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        split: Callable[[Tensor], Tensor],
        take_matrix: TakeMatrix,
        take_bias: TakeRows,
    ) -> Tensor:
        """Multiplies.

        Args:
            ctx: Values for the backward pass.
            inputs: `[..., width]`.
            weight: `[height, width]`.
            bias: `[height]`, or `None`.
            split: Reshapes a tensor to rows, `[num_rows, length, features]`.
            take_matrix: Takes the rows' inputs and output gradients and returns the weight gradient.
            take_bias: Takes the rows' bias gradients, `[num_rows, height]`.

        Returns:
            `[..., height]`.
        """
        dtype = _dtype_of_product(inputs)
        own_inputs, own_weight = inputs.to(dtype), weight.to(dtype)
        ctx.save_for_backward(own_inputs, own_weight)
        ctx.split, ctx.take_matrix, ctx.take_bias = split, take_matrix, take_bias
        ctx.input_dtype, ctx.weight_dtype = inputs.dtype, weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return torch.nn.functional.linear(own_inputs, own_weight, None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        """Returns the gradients, and passes on the factors of the weight gradient."""
        _check_once()
        if gradient is None:
            return (None,) * 6
        inputs, weight = ctx.saved_tensors
        need_inputs, need_weight, need_bias = ctx.needs_input_grad[:3]
        of_inputs = of_weight = of_bias = None
        with torch.autocast(gradient.device.type, enabled=False):
            if need_inputs:
                of_inputs = (gradient @ weight).to(ctx.input_dtype)
            rows = ctx.split(gradient)
            if need_weight:
                of_weight = ctx.take_matrix(ctx.split(inputs), rows).to(ctx.weight_dtype)
            if need_bias:
                per_row = rows.sum(1, dtype=at_least_float32(rows.dtype))
                ctx.take_bias(per_row)
                of_bias = per_row.sum(0).to(ctx.bias_dtype)
        return of_inputs, of_weight, of_bias, None, None, None


def _check_once() -> None:
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


class VectorByRow(Function):
    """A vector repeated for each row: element-wise uses then have a gradient by row."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, num_rows: int, num_axes: int, take: TakeRows) -> Tensor:
        """Repeats the vector, without copies.

        Args:
            ctx: Values for the backward pass.
            vector: `[size]`.
            num_rows: Rows of the batch.
            num_axes: Axes of the other operand; the first are the rows.
            take: Takes the rows' gradients, `[num_rows, size]`.

        Returns:
            `[num_rows, 1, ..., size]`.
        """
        ctx.take = take
        return vector.view(*[1] * (num_axes - 1), -1).expand(num_rows, *[-1] * (num_axes - 1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the vector's gradient, and passes on those of the rows."""
        _check_once()
        rows = gradient.reshape(len(gradient), -1)
        per_row = rows.to(at_least_float32(rows.dtype))
        ctx.take(per_row)
        return per_row.sum(0).to(gradient.dtype), None, None, None
