"""Transport of samples between processes: one tensor per column, everything else pickled."""

import contextlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mixer.loading.collate import Columns, Samples, have_same_keys

_MAX_PIPED_BYTES = 1_000_000
_ARRAY_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128}
)

# Tensors of equal shapes, stacked, or of unequal ones, flat in one tensor with their shapes: each tensor that crosses a
# process boundary costs a file descriptor. Small ones go as arrays: those go through the pipe, which is faster than
# setting up shared memory. Anything else is pickled.
_Column = Tensor | NDArray[Any] | tuple[Tensor, list[torch.Size]] | bytes


@dataclass(frozen=True)
class Packed:
    """Samples packed for transport.

    Args:
        columns: For dicts with equal keys, one column per key; else `None`.
        rows: Other samples.
    """

    columns: Mapping[Any, _Column] | None
    rows: _Column | None = None

    def unpack(self) -> Samples:
        """Returns the samples; tensors of a column share memory."""
        if self.columns is not None:
            return Samples({name: _unpack(column) for name, column in self.columns.items()})
        return Samples(None, () if self.rows is None else _unpack(self.rows))  # type: ignore[arg-type]


def pack(samples: Sequence[Any]) -> Packed:
    """Packs samples of any kind."""
    if have_same_keys(samples):
        return Packed({name: _pack_column([sample[name] for sample in samples]) for name in samples[0]})
    return Packed(None, _pack_column(list(samples)))


def pack_columns(columns: Columns) -> Packed:
    """Packs samples that were read by column, each a tensor `[num_samples, ...]`."""
    return Packed({name: _stacked(values) for name, values in columns.items()})


def _stacked(values: Tensor) -> Tensor | NDArray[Any]:
    is_small = values.nbytes <= _MAX_PIPED_BYTES and values.dtype in _ARRAY_DTYPES
    return values.detach().numpy() if is_small else values


def _pack_column(values: list[Any]) -> _Column:
    if set(map(type, values)) == {Tensor} and len({value.dtype for value in values}) == 1:
        with contextlib.suppress(RuntimeError):  # unequal shapes, or not all on one device
            stacked = torch.stack(values)
            return _stacked(stacked) if _is_plain_tensor(stacked) else _pickled(values)
        if all(map(_is_plain_tensor, values)):
            return torch.cat([value.reshape(-1) for value in values]), [value.shape for value in values]
    return _pickled(values)


def _pickled(values: list[Any]) -> bytes:
    return pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)


def _unpack(column: _Column) -> Tensor | list[Any]:
    if isinstance(column, bytes):
        return pickle.loads(column)  # type: ignore[no-any-return]  # noqa: S301  # from our own worker
    if isinstance(column, tuple):
        flat, shapes = column
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    return column if isinstance(column, Tensor) else torch.from_numpy(column)


def _is_plain_tensor(value: Tensor) -> bool:
    is_dense = value.layout is torch.strided and not value.is_nested
    return is_dense and value.device.type == "cpu" and not value.requires_grad
