"""Where the streams' gradients of each parameter are kept until their products are asked for: whole, or projected."""

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
    """A parameter whose gradient is told apart by stream.

    Args:
        index: Its number.
        name: Its name, the same on every rank.
        shape: Its shape.
        device: Where it is.
        dtype: The type in which its gradients are added up.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype


def projections_of(targets: Sequence[Target], size: int, seed: int) -> list[Projection]:
    """Makes a projection for each parameter.

    Args:
        targets: The parameters.
        size: Rows and columns of each, at most.
        seed: Seed of their random numbers.

    Returns:
        The projections.
    """
    return [Projection(one.name, one.shape, size, seed, one.device, one.dtype) for one in targets]


class Taker(Protocol):
    """Takes the gradients of one micro-batch, parameter by parameter."""

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """Takes up the gradients of one parameter.

        Args:
            index: Its number.
            pieces: `[num_present, height, width]`: its gradient from each stream.
            present: int64 `[num_present]`: which streams those are.
        """

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """Takes up gradients of which only some rows are not 0.

        Args:
            index: Number of the parameter.
            rows: int64 `[num_given]`: which rows.
            pieces: `[num_present, num_given, width]`: these.
            present: int64 `[num_present]`: which streams those are.
            others: The same rows of what was added for this micro-batch before, or `None` if nothing was.
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
        """Gives what has to be added up over the ranks, in place, before `products` is asked for."""

    @abstractmethod
    def products(self) -> Tensor:
        """Gives float64 `[num_parameters, num_streams, num_streams]`: products of the streams' gradients."""

    def relative_variances(self) -> Tensor:
        """Gives float64 `[num_parameters]`: bounds on the variance of a product over both squared norms."""
        return torch.zeros(len(self._targets), dtype=torch.float64)


class ExactSums(Sums):
    """Multiplies at once and keeps the products only: right for one micro-batch, whose gradient is the whole one."""

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
        """See `Sums.travelling`; products of parts of a gradient do not add up, so there is nothing."""
        return []

    def products(self) -> Tensor:
        """See `Sums.products`."""
        return self._products.cpu()


class LinearSums(Sums):
    """Keeps something of the gradients that adds up over micro-batches and ranks, and multiplies at the end."""

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
        projections: A projection for each parameter.
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
