"""Sums of the streams' gradients per parameter, whole or projected, and their products."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mixer.gradients.probe.products import products
from mixer.gradients.probe.sketch import Projection


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


class ExactSums:
    """Multiplies at once and keeps only the products: correct for one micro-batch with the whole gradient.

    Attributes:
        kept: Tensors to sum over ranks, in place; none, as products of parts of a gradient do not add up.
        relative_variances: float64 `[num_parameters]`; see `LinearSums`.
    """

    def __init__(self, targets: Sequence[Target], num_streams: int):
        self.kept: list[Tensor] = []
        self.relative_variances = torch.zeros(len(targets), dtype=torch.float64)
        shape = (len(targets), num_streams, num_streams)
        self._products = torch.zeros(shape, dtype=torch.float64, device=targets[0].device)

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""
        self.add_rows(index, torch.empty(0), pieces, present, None)  # which rows they are does not matter here

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""
        flat = pieces.flatten(1)
        added = products(flat, flat)
        if others is not None:
            crossed = products(flat, others.flatten(1))
            added = added + crossed + crossed.T
        self._products[index, present[:, None], present] += added.to(self._products.device)

    def products(self) -> Tensor:
        """Returns the products of the streams' gradients, float64 `[num_parameters, num_streams, num_streams]`."""
        return self._products.cpu()


class LinearSums:
    """Keeps projections of the gradients, which add up over micro-batches and ranks, and multiplies at the end.

    Args:
        targets: The parameters.
        num_streams: Number of streams.
        projections: One projection per parameter; without a fold it keeps the whole gradients.

    Attributes:
        kept: For each parameter `[num_streams, height, width]`: to sum over ranks, in place, before `products`.
        relative_variances: float64 `[num_parameters]`: bounds of the variance of a product relative to both squared
            norms.
    """

    def __init__(self, targets: Sequence[Target], num_streams: int, projections: Sequence[Projection]):
        self._projections = projections
        self.relative_variances = torch.tensor([one.relative_variance for one in projections], dtype=torch.float64)
        self.kept = [
            torch.zeros(num_streams, *projection.shape, dtype=target.dtype, device=target.device)
            for target, projection in zip(targets, projections, strict=True)
        ]

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""
        self.kept[index].index_add_(0, present, self._projections[index].fold(pieces))

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""
        self._projections[index].add_rows(self.kept[index], present, rows, pieces)

    def products(self) -> Tensor:
        """See `ExactSums.products`."""
        return torch.stack([products(kept.flatten(1), kept.flatten(1)).cpu() for kept in self.kept])
