"""Ways of each kind of layer to run so that its gradients are told apart by row."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mixer.probe.functions import LinearByRow, VectorByRow
from mixer.probe.reading import Reading
from mixer.probe.rows import Rows


class Capture(ABC):
    """A layer of a known kind.

    While it is installed, it runs in place of the layer's `forward`, and as that where no micro-batch is read.

    Args:
        module: The layer.
        indices: Numbers of its parameters that are read, by their names in the layer.
        reading: Gives what reads the present micro-batch, or `None`.
    """

    def __init__(self, module: nn.Module, indices: Mapping[str, int], reading: Callable[[], Reading | None]):
        # Held weakly: the layer holds this while it is installed, and a copy of a model must not copy the probe.
        self._module = weakref.ref(module)
        self.indices = dict(indices)
        self._reading = reading

    @staticmethod
    @abstractmethod
    def knows(module: nn.Module) -> bool:
        """Whether the layer is of this kind."""

    @property
    def module(self) -> nn.Module:
        """The layer."""
        module = self._module()
        assert module is not None, "a probe's model is there while it runs"  # noqa: S101
        return module

    def install(self) -> None:
        """Puts it in place of the layer's own forward."""
        self.module.forward = self.forward

    def remove(self) -> None:
        """Gives the layer its own forward back."""
        self.module.__dict__.pop("forward", None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer."""
        module, reading = self.module, self._reading()
        if reading is not None:
            self._note(reading)
            if torch.is_grad_enabled() and len(args) == 1 and not kwargs:
                result = self._read(module, args[0], reading)
                if result is not None:
                    return result
                reading.failed.update(self.indices.values())
            elif torch.is_grad_enabled():
                reading.failed.update(self.indices.values())
        return type(module).forward(module, *args, **kwargs)

    def _note(self, reading: Reading) -> None:
        """Notes that the layer is used, where it matters how often."""
        return

    @abstractmethod
    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        """Runs the layer and sees to it that its gradients are read; `None` if its rows cannot be told."""


class LinearCapture(Capture):
    """`nn.Linear`, and `Conv1D` of transformers, which has the weight the other way round."""

    @staticmethod
    def knows(module: nn.Module) -> bool:
        """See `Capture.knows`."""
        return type(module).forward in (nn.Linear.forward, Conv1D.forward) and isinstance(module, nn.Linear | Conv1D)

    def _note(self, reading: Reading) -> None:
        if "weight" in self.indices:
            reading.note_use(self.indices["weight"])

    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        if reading.rows.split(inputs) is None:
            return None
        is_transposed = isinstance(module, Conv1D)
        weight = module.weight.T if is_transposed else module.weight
        index = self.indices.get("weight", -1)

        def take_matrix(own_inputs: Tensor, gradients: Tensor) -> Tensor:
            if is_transposed:
                return reading.matrix(index, gradients, own_inputs).T
            return reading.matrix(index, own_inputs, gradients)

        def take_bias(per_row: Tensor) -> None:
            reading.vector(self.indices["bias"], per_row)

        result: Tensor = LinearByRow.apply(  # type: ignore[no-untyped-call]
            inputs, weight, module.bias, _splitter(reading.rows), take_matrix, take_bias
        )
        return result


class EmbeddingCapture(Capture):
    """`nn.Embedding`."""

    @staticmethod
    def knows(module: nn.Module) -> bool:
        """See `Capture.knows`."""
        return (
            isinstance(module, nn.Embedding)
            and type(module).forward is nn.Embedding.forward
            and module.max_norm is None
            and not module.scale_grad_by_freq
        )

    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        num_rows, ids = reading.rows.num_rows, inputs
        if ids.dim() == 2 and ids.shape[0] == 1 < num_rows:
            ids = ids.expand(num_rows, -1)  # positions, the same in each row
        if ids.dim() < 2 or ids.shape[0] != num_rows:
            return None
        flat = ids.reshape(num_rows, -1)
        reading.rows.note_length(flat.shape[1])
        result: Tensor = nn.Embedding.forward(module, ids)
        take = reading.look_up(self.indices["weight"], flat)

        def take_gradient(gradient: Tensor) -> None:
            rows = gradient.reshape(*flat.shape, -1)
            if module.padding_idx is not None:
                rows = rows.masked_fill((flat == module.padding_idx)[:, :, None], 0.0)
            take(rows)

        if result.requires_grad:
            result.register_hook(take_gradient)  # type: ignore[no-untyped-call]
        return result


class NormCapture(Capture):
    """`nn.LayerNorm`, `nn.RMSNorm`, and layers of that name that take their vector element by element."""

    @staticmethod
    def knows(module: nn.Module) -> bool:
        """See `Capture.knows`."""
        own = dict(module.named_parameters(recurse=False))
        is_named = any(name in type(module).__name__ for name in ("LayerNorm", "RMSNorm"))
        return is_named and next(module.children(), None) is None and all(one.dim() == 1 for one in own.values())

    def _read(self, module: Any, inputs: Tensor, reading: Reading) -> Tensor | None:
        num_rows = reading.rows.num_rows
        if inputs.dim() < 2 or inputs.shape[0] != num_rows:
            return None
        by_row = {
            name: VectorByRow.apply(  # type: ignore[no-untyped-call]
                getattr(module, name), num_rows, inputs.dim(), lambda per_row, i=index: reading.vector(i, per_row)
            )
            for name, index in self.indices.items()
        }
        if type(module).forward in (nn.LayerNorm.forward, nn.RMSNorm.forward):
            return self._fused(module, by_row, inputs)
        return self._with(module, by_row, inputs)

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
        return result.to(type(module).forward(module, inputs[:0]).dtype)  # whatever autocast makes of it

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


KINDS: tuple[type[Capture], ...] = (LinearCapture, EmbeddingCapture, NormCapture)


def _splitter(rows: Rows) -> Callable[[Tensor], Tensor]:
    def split(values: Tensor) -> Tensor:
        result = rows.split(values)
        assert result is not None, "outputs of a layer fall into rows as its inputs do"  # noqa: S101
        return result

    return split
