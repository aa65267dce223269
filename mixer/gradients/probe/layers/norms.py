"""Normalisation layers, run so that the gradients of their vectors are separated by row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import Function

from mixer.gradients.probe.layers.captures import Capture, check_once, gives, run_with
from mixer.gradients.probe.reading import Reading
from mixer.gradients.probe.row_streams import at_least_float32


class NormCapture(Capture):
    """`nn.LayerNorm`, `nn.RMSNorm`, and layers of similar names that apply their vectors element by element."""

    plain = (nn.LayerNorm.forward, nn.RMSNorm.forward)

    @staticmethod
    def knows(module: nn.Module) -> bool:
        """See `Capture.knows`."""
        own = dict(module.named_parameters(recurse=False))
        is_named = any(name in type(module).__name__ for name in ("LayerNorm", "RMSNorm"))
        return is_named and next(module.children(), None) is None and all(vector.dim() == 1 for vector in own.values())

    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        num_rows = reading.rows.num_rows
        rows = inputs if inputs.dim() > 1 and len(inputs) == num_rows else reading.rows.split(inputs)
        if rows is not None and self._is_alike is None:
            self._is_alike = _try(module, tuple(self.indices), rows)
        if rows is None or not self._is_alike:
            return None
        by_row = {
            name: VectorByRow.apply(  # type: ignore[no-untyped-call]
                getattr(module, name), num_rows, rows.dim(), lambda per_row, i=index: reading.vector(i, per_row)
            )
            for name, index in self.indices.items()
        }
        run = _fused if type(module).forward in self.plain else run_with
        result = run(module, by_row, rows)
        return result.reshape(inputs.shape)


def _fused(module: Any, vectors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Computes in two steps the result of torch's kernel, which takes no vector per row."""
    wide = inputs.to(at_least_float32(inputs.dtype))
    if isinstance(module, nn.LayerNorm):
        result = F.layer_norm(wide, module.normalized_shape, eps=module.eps)
    else:
        eps = torch.finfo(inputs.dtype).eps if module.eps is None else module.eps
        result = F.rms_norm(wide, module.normalized_shape, eps=eps)
    if module.weight is not None:
        result = result * vectors.get("weight", module.weight)
    shift = vectors.get("bias", getattr(module, "bias", None))
    result = result if shift is None else result + shift
    return result.to(type(module).forward(module, inputs[:0]).dtype)  # the type that autocast chooses


def _try(module: nn.Module, names: Sequence[str], inputs: Tensor) -> bool:
    """Whether a layer of a similar name applies its vectors element by element."""
    shape = (len(inputs), *[1] * (inputs.dim() - 2), -1)
    own = {name: getattr(module, name) for name in names}  # ones or zeros at first, which would hide differences
    vectors = {
        name: torch.linspace(0.5, 1.5, len(vector), dtype=vector.dtype, device=vector.device)
        for name, vector in own.items()
    }
    with torch.no_grad():
        expected = run_with(module, vectors, inputs)
        by_row = {name: vector.expand(shape) for name, vector in vectors.items()}
        return gives(lambda: run_with(module, by_row, inputs), expected, rtol=1e-2, atol=1e-3)


class VectorByRow(Function):
    """A vector repeated for each row: element-wise uses then have a gradient by row."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, num_rows: int, num_axes: int, take: Callable[[Tensor], None]) -> Tensor:
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
        check_once()
        rows = gradient.reshape(len(gradient), -1)
        per_row = rows.to(at_least_float32(rows.dtype))
        ctx.take(per_row)
        return per_row.sum(0).to(gradient.dtype), None, None, None
