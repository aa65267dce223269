"""How samples travel from a worker process: tensors of a column as one, everything else pickled."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _TensorColumn:
    """The tensors of several samples in one: each that crosses a process boundary costs a file descriptor."""

    flat: Tensor
    shapes: list[torch.Size]

    def unpack(self) -> list[Tensor]:
        parts = torch.split(self.flat, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class _StackedColumn:
    values: Tensor

    def unpack(self) -> list[Tensor]:
        return list(self.values.unbind())


@dataclass(frozen=True)
class _PickledColumn:
    content: bytes

    def unpack(self) -> list[Any]:
        return pickle.loads(self.content)  # type: ignore[no-any-return]  # noqa: S301  # from our own worker


_Column = _TensorColumn | _StackedColumn | _PickledColumn


@dataclass(frozen=True)
class Packed:
    """Samples on their way.

    Args:
        columns: For samples that are dicts with the same keys, a column a key; else `None`.
        samples: The samples, where they are no such dicts.
    """

    columns: Mapping[Any, _Column] | None
    samples: _Column | None = None

    def unpack(self) -> list[Any]:
        """Gives the samples back.

        Returns:
            The samples; tensors of a column share their memory.
        """
        if self.columns is None:
            return [] if self.samples is None else self.samples.unpack()
        names, columns = list(self.columns), [column.unpack() for column in self.columns.values()]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def pack(samples: Sequence[Any]) -> Packed:
    """Packs samples of any kind.

    Args:
        samples: The samples.

    Returns:
        What unpacks to them.
    """
    first = samples[0]
    if type(first) is dict and all(type(sample) is dict and sample.keys() == first.keys() for sample in samples):
        return Packed({name: _pack_column([sample[name] for sample in samples]) for name in first})
    return Packed(None, _pack_column(list(samples)))


def pack_columns(columns: Mapping[str, Tensor]) -> Packed:
    """Packs samples that were read by columns.

    Args:
        columns: For each column a tensor `[num_samples, ...]`.

    Returns:
        What unpacks to a dict a sample.
    """
    return Packed({name: _StackedColumn(values) for name, values in columns.items()})


def _pack_column(values: list[Any]) -> _Column:
    first = values[0]
    is_tensor = type(first) is Tensor and first.device.type == "cpu" and first.layout is torch.strided
    if is_tensor and all(type(value) is Tensor and value.dtype == first.dtype for value in values):
        shapes = [value.shape for value in values]
        if all(shape == first.shape for shape in shapes):
            return _StackedColumn(torch.stack(values))
        return _TensorColumn(torch.cat([value.reshape(-1) for value in values]), shapes)
    return _PickledColumn(pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL))
