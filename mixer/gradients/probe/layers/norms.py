"""Normalisation layers, run so that the gradients of their vectors are separated by row."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixer.gradients.probe.layers.captures import Capture
from mixer.gradients.probe.layers.functions import VectorByRow
from mixer.gradients.probe.reading import Desk, Reading
from mixer.gradients.probe.rows import at_least_float32

_FUSED = (nn.LayerNorm.forward, nn.RMSNorm.forward)


class NormCapture(Capture):
    """`nn.LayerNorm`, `nn.RMSNorm`, and layers of similar names that apply their vectors element by element."""

    @staticmethod
    def knows(module: nn.Module) -> bool:
        """See `Capture.knows`."""
        own = dict(module.named_parameters(recurse=False))
        is_named = any(name in type(module).__name__ for name in ("LayerNorm", "RMSNorm"))
        return is_named and next(module.children(), None) is None and all(one.dim() == 1 for one in own.values())

    def __init__(self, module: nn.Module, indices: Mapping[str, int], desk: Desk):
        super().__init__(module, indices, desk)
        # Whether a vector per row gives the same result; for layers other than torch's own, known after a trial.
        self._is_alike = True if type(module).forward in _FUSED else None

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
        is_known = type(module).forward in _FUSED
        result = _fused(module, by_row, rows) if is_known else _with(module, by_row, rows)
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


def _with(module: nn.Module, vectors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Runs a layer's own forward with other vectors."""
    parameters: dict[str, Any] = module._parameters  # noqa: SLF001  # to set tensors that are no parameters
    own = {name: parameters[name] for name in vectors}
    try:
        parameters.update(vectors)
        result: Tensor = type(module).forward(module, inputs)
    finally:
        parameters.update(own)
    return result


def _try(module: nn.Module, names: Sequence[str], inputs: Tensor) -> bool:
    """Whether a layer of a similar name applies its vectors element by element."""
    shape = (len(inputs), *[1] * (inputs.dim() - 2), -1)
    own = {name: getattr(module, name) for name in names}  # ones or zeros at first, which would hide differences
    vectors = {
        name: torch.linspace(0.5, 1.5, len(one), dtype=one.dtype, device=one.device) for name, one in own.items()
    }
    with torch.no_grad():
        expected = _with(module, vectors, inputs)
        try:
            found = _with(module, {name: vector.expand(shape) for name, vector in vectors.items()}, inputs)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return False
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-2, atol=1e-3, equal_nan=True)
