"""Sums of the streams' gradients per parameter, whole or projected, and their products."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mixer.gradients.probe.products import products
from mixer.gradients.probe.sketch import Projection, as_matrix


@dataclass(frozen=True)
class Target:
    """A probed parameter.

    Args:
        index: Its number.
        name: Its name, the same on every rank.
        shape: Its shape.
        device: Its device.
        dtype: Type of the sums of its gradients.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype


def projections_of(targets: Sequence[Target], size: int, seed: int) -> list[Projection]:
    """Creates a projection per parameter, with at most `size` rows and columns."""
    return [Projection(one.name, one.shape, size, seed, one.device, one.dtype) for one in targets]


class Taker(Protocol):
    """Destination of the gradients of one micro-batch, parameter by parameter."""

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """Adds the gradients of one parameter.

        Args:
            index: Number of the parameter.
            pieces: `[num_present, height, width]`: its gradient from each stream.
            present: int64 `[num_present]`: the streams.
        """

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """Adds gradients with few rows that are not 0.

        Args:
            index: Number of the parameter.
            rows: int64 `[num_given]`: numbers of these rows.
            pieces: `[num_present, num_given, width]`: the rows.
            present: int64 `[num_present]`: the streams.
            others: The same rows of an earlier addition of this micro-batch, or `None`.
        """


class Sums(ABC):
    """The gradients of all parameters by stream, summed over micro-batches.

    Args:
        targets: The parameters.
        num_streams: Number of streams.
    """

    def __init__(self, targets: Sequence[Target], num_streams: int):
        self._targets = targets
        self._num_streams = num_streams

    @abstractmethod
    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""

    @abstractmethod
    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""

    @abstractmethod
    def travelling(self) -> list[Tensor]:
        """Returns the tensors to sum over ranks, in place, before `products` is called."""

    @abstractmethod
    def products(self) -> Tensor:
        """Returns the products of the streams' gradients, float64 `[num_parameters, num_streams, num_streams]`."""

    def relative_variances(self) -> Tensor:
        """Bounds the variance of a product relative to both squared norms, float64 `[num_parameters]`."""
        return torch.zeros(len(self._targets), dtype=torch.float64)


class ExactSums(Sums):
    """Multiplies at once and keeps only the products: correct for one micro-batch with the whole gradient."""

    def __init__(self, targets: Sequence[Target], num_streams: int):
        super().__init__(targets, num_streams)
        device = targets[0].device
        shape = (len(targets), num_streams, num_streams)
        self._products = torch.zeros(shape, dtype=torch.float64, device=device)

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""
        flat = pieces.reshape(len(pieces), -1)
        self._add(index, products(flat, flat), present)

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""
        flat = pieces.reshape(len(pieces), -1)
        found = products(flat, flat)
        if others is not None:
            crossed = products(flat, others.reshape(len(others), -1))
            found = found + crossed + crossed.T
        self._add(index, found, present)

    def _add(self, index: int, found: Tensor, present: Tensor) -> None:
        self._products[index, present[:, None], present] += found.to(self._products.device)

    def travelling(self) -> list[Tensor]:
        """See `Sums.travelling`; empty, as products of parts of a gradient do not add up."""
        return []

    def products(self) -> Tensor:
        """See `Sums.products`."""
        return self._products.cpu()


class LinearSums(Sums):
    """Keeps linear functions of the gradients, which add up over micro-batches and ranks, and multiplies at the end."""

    _kept: list[Tensor]  # for each parameter `[num_streams, height, width]`

    def travelling(self) -> list[Tensor]:
        """See `Sums.travelling`."""
        return self._kept

    def products(self) -> Tensor:
        """See `Sums.products`."""
        flat = [kept.reshape(self._num_streams, -1) for kept in self._kept]
        return torch.stack([products(kept, kept).cpu() for kept in flat])


class HeldSums(LinearSums):
    """Keeps every stream's whole gradient: `num_streams` times the memory of the parameters."""

    def __init__(self, targets: Sequence[Target], num_streams: int):
        super().__init__(targets, num_streams)
        self._kept = [
            torch.zeros(num_streams, *as_matrix(target.shape), dtype=target.dtype, device=target.device)
            for target in targets
        ]

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""
        self._kept[index].index_add_(0, present, pieces)

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""
        self._kept[index].index_put_((present[:, None], rows), pieces, accumulate=True)


class SketchSums(LinearSums):
    """Keeps projections of the gradients.

    Args:
        targets: The parameters.
        num_streams: Number of streams.
        projections: One projection per parameter.
    """

    def __init__(self, targets: Sequence[Target], num_streams: int, projections: Sequence[Projection]):
        super().__init__(targets, num_streams)
        self._projections = projections
        self._kept = [
            torch.zeros(num_streams, *projection.shape, dtype=target.dtype, device=target.device)
            for target, projection in zip(targets, projections, strict=True)
        ]

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""
        self._kept[index].index_add_(0, present, self._projections[index].fold(pieces))

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""
        self._kept[index].index_add_(0, present, self._projections[index].fold_some_rows(rows, pieces))

    def relative_variances(self) -> Tensor:
        """See `Sums.relative_variances`."""
        return torch.tensor([projection.relative_variance for projection in self._projections], dtype=torch.float64)
