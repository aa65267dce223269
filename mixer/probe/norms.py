"""Normalisation layers, run so that the gradients of their vectors are told apart by row."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixer.probe.captures import Capture
from mixer.probe.functions import VectorByRow
from mixer.probe.reading import Desk, Reading

_FUSED = (nn.LayerNorm.forward, nn.RMSNorm.forward)


class NormCapture(Capture):
    """`nn.LayerNorm`, `nn.RMSNorm`, and layers of that name that take their vector element by element."""

    @staticmethod
    def knows(module: nn.Module) -> bool:
        """See `Capture.knows`."""
        own = dict(module.named_parameters(recurse=False))
        is_named = any(name in type(module).__name__ for name in ("LayerNorm", "RMSNorm"))
        return is_named and next(module.children(), None) is None and all(one.dim() == 1 for one in own.values())

    def __init__(self, module: nn.Module, indices: Mapping[str, int], desk: Desk):
        super().__init__(module, indices, desk)
        self._is_alike: bool | None = None  # whether it gives the same with a vector for each row, once that was tried

    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        num_rows = reading.rows.num_rows
        if inputs.dim() < 2 or inputs.shape[0] != num_rows or self._is_alike is False:
            return None
        by_row = {
            name: VectorByRow.apply(  # type: ignore[no-untyped-call]
                getattr(module, name), num_rows, inputs.dim(), lambda per_row, i=index: reading.vector(i, per_row)
            )
            for name, index in self.indices.items()
        }
        if type(module).forward in _FUSED:
            return self._fused(module, by_row, inputs)
        if self._is_alike is None:
            self._is_alike = self._try(module, inputs)
        return self._with(module, by_row, inputs) if self._is_alike else None

    @staticmethod
    def _fused(module: Any, vectors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Does what torch does in one kernel, which takes no vector by row, in two steps."""
        wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        if isinstance(module, nn.LayerNorm):
            result = F.layer_norm(wide, module.normalized_shape, eps=module.eps)
        else:
            eps = torch.finfo(inputs.dtype).eps if module.eps is None else module.eps
            result = F.rms_norm(wide, module.normalized_shape, eps=eps)
        if module.weight is not None:
            result = result * vectors.get("weight", module.weight)
        shift = vectors.get("bias", getattr(module, "bias", None))
        result = result if shift is None else result + shift
        return result.to(type(module).forward(module, inputs[:0]).dtype)  # what autocast makes of it

    @staticmethod
    def _with(module: nn.Module, vectors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Runs a layer's own forward on other vectors."""
        own = {name: module._parameters[name] for name in vectors}
        try:
            module._parameters.update(vectors)  # type: ignore[arg-type]
            result: Tensor = type(module).forward(module, inputs)
        finally:
            module._parameters.update(own)
        return result

    def _try(self, module: nn.Module, inputs: Tensor) -> bool:
        """Says whether a layer that has only its name in common with those we know works element by element too."""
        shape = (len(inputs), *[1] * (inputs.dim() - 2), -1)
        with torch.no_grad():
            expected = type(module).forward(module, inputs)
            try:
                found = self._with(module, {name: getattr(module, name).expand(shape) for name in self.indices}, inputs)
            except (RuntimeError, ValueError, TypeError, IndexError):
                return False
        return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-2, atol=1e-3, equal_nan=True)
