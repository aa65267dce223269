"""Sums of the streams' gradients over micro-batches and ranks, and the statistics that follow from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mixer.distributed.gradient_sync import add_up
from mixer.gradients.probe.row_streams import Rows, at_least_float32
from mixer.gradients.probe.sketch import Projection, Projections
from mixer.measurements.gradients import GradientStatistics, signal_and_noise
from mixer.utils.arrays import FloatArray
from mixer.utils.device import to_host

_BLOCK = 8192  # longer float32 vectors are multiplied in blocks, or products lose digits


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

    @classmethod
    def of(cls, index: int, name: str, parameter: nn.Parameter) -> "Target":
        """Describes a parameter."""
        return cls(index, name, tuple(parameter.shape), parameter.device, at_least_float32(parameter.dtype))


def projections_of(targets: Sequence[Target], size: int, seed: int) -> Projections:
    """Creates a projection per parameter, with at most `size` rows and columns."""
    own = [Projection(target.name, target.shape, size, seed, target.device, target.dtype) for target in targets]
    return Projections(own, seed)


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


def products(left: Tensor, right: Tensor) -> Tensor:
    """Multiplies all pairs of two sets of vectors.

    Args:
        left: `[num_left, size]`.
        right: `[num_right, size]`.

    Returns:
        float64 `[num_left, num_right]`.
    """
    size = left.shape[1]
    block = _block_of(size)
    whole = size - size % block
    blocks = [part[:, :whole].reshape(len(part), -1, block).transpose(0, 1) for part in (left, right)]
    result = torch.bmm(blocks[0], blocks[1].transpose(1, 2)).sum(0, dtype=torch.float64)
    return result if whole == size else result + left[:, whole:].double() @ right[:, whole:].double().T


@cache
def _block_of(size: int) -> int:
    """Returns the length of a block: one without a rest if there is one of some length."""
    return next((block for block in range(_BLOCK, _BLOCK // 16, -1) if not size % block), min(size, _BLOCK))


class ExactSums:
    """Multiplies at once and keeps only the products: correct for one micro-batch with the whole gradient.

    Attributes:
        sums: Tensors to sum over ranks, in place; none, as products of parts of a gradient do not add up.
        relative_variances: float64 `[num_parameters]`; see `LinearSums`.
    """

    def __init__(self, targets: Sequence[Target], num_streams: int):
        self.sums: list[Tensor] = []
        self.relative_variances = torch.zeros(len(targets), dtype=torch.float64)
        self._shape, self._device = (len(targets), num_streams, num_streams), targets[0].device
        self._added: list[tuple[int, Tensor]] = []
        self._present = torch.empty(0)

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
        self._added.append((index, added.to(self._device, non_blocking=True)))
        self._present = present  # the same for all parameters

    def products(self) -> Tensor:
        """Returns the products of the streams' gradients, float64 `[num_parameters, num_streams, num_streams]`."""
        result = torch.zeros(self._shape, dtype=torch.float64, device=self._device)
        if self._added:
            added = torch.stack([products for _, products in self._added])
            indices = torch.tensor([index for index, _ in self._added]).to(self._device, non_blocking=True)
            present = self._present.to(self._device, non_blocking=True)
            result.index_put_((indices[:, None, None], present[:, None], present), added, accumulate=True)
        return result


class LinearSums:
    """Keeps projections of the gradients, which add up over micro-batches and ranks, and multiplies at the end.

    Args:
        targets: The parameters.
        num_streams: Number of streams.
        projections: One projection per parameter; without a fold it keeps the whole gradients.

    Attributes:
        sums: For each parameter `[num_streams, height, width]`: to sum over ranks, in place, before `products`.
        relative_variances: float64 `[num_parameters]`: bounds of the variance of a product relative to both squared
            norms.
    """

    def __init__(self, targets: Sequence[Target], num_streams: int, projections: Projections):
        self._projections = projections.each
        self.relative_variances = torch.tensor(
            [projection.relative_variance for projection in projections.each], dtype=torch.float64
        )
        self.sums = _zeros(targets, [(num_streams, *projection.shape) for projection in projections.each])

    def add(self, index: int, pieces: Tensor, present: Tensor) -> None:
        """See `Taker.add`."""
        self.sums[index].index_add_(0, present, self._projections[index].fold(pieces))

    def add_rows(self, index: int, rows: Tensor, pieces: Tensor, present: Tensor, others: Tensor | None) -> None:
        """See `Taker.add_rows`."""
        self._projections[index].add_rows(self.sums[index], present, rows, pieces)

    def products(self) -> Tensor:
        """See `ExactSums.products`."""
        device = self.sums[0].device
        flat = [sums.flatten(1) for sums in self.sums]
        return torch.stack([products(sums, sums).to(device, non_blocking=True) for sums in flat])


def _zeros(targets: Sequence[Target], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Makes tensors for parameters, those of one device and type in one piece of memory."""
    by_place: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, target in enumerate(targets):
        by_place.setdefault((target.device, target.dtype), []).append(number)
    made: dict[int, Tensor] = {}
    for (device, dtype), numbers in by_place.items():
        sizes = [math.prod(shapes[number]) for number in numbers]
        parts = torch.split(torch.zeros(sum(sizes), dtype=dtype, device=device), sizes)
        made |= {number: part.view(shapes[number]) for number, part in zip(numbers, parts, strict=True)}
    return [made[number] for number in range(len(targets))]


class Totals:
    """Sums over the micro-batches since the start of a measurement.

    Args:
        targets: The parameters.
        num_streams: Number of streams.
        projections: One projection per parameter, for several micro-batches or ranks; `None` for exact products.
        wants_squares: Whether squared norms are needed.

    Attributes:
        sums: The streams' gradients.
        squares: float64 `[num_parameters, num_streams]`: squared norms of the gradients of the groups (samples, or
            micro-batches) behind the variance; `None` if it is not needed.
        failures: `[num_parameters]`: number of failures to read a parameter.
        counts: `[3, num_streams]`: samples, items, and the sum of the squares of the groups' items.
    """

    def __init__(
        self, targets: Sequence[Target], num_streams: int, projections: Projections | None, wants_squares: bool
    ):
        self.sums: ExactSums | LinearSums = ExactSums(targets, num_streams)
        if projections is not None:
            self.sums = LinearSums(targets, num_streams, projections)
        shape, device = (len(targets), num_streams), targets[0].device
        self.squares = torch.zeros(shape, dtype=torch.float64, device=device) if wants_squares else None
        self.failures, self.counts = np.zeros(len(targets)), np.zeros((3, num_streams))

    def count(self, rows: Rows, is_one_group: bool) -> None:
        """Counts the rows of a micro-batch.

        Args:
            rows: The rows.
            is_one_group: Whether the variance is of micro-batches rather than samples.
        """
        squared = rows.num_items**2 if is_one_group else rows.num_squared
        self.counts += np.stack([rows.counts, rows.num_items, squared])

    def add_up(self, device: torch.device) -> None:
        """Sums the totals over ranks.

        Args:
            device: Device of the collective.
        """
        add_up(self.sums.sums)
        numbers = [torch.from_numpy(part).to(device, non_blocking=True) for part in (self.failures, self.counts)]
        add_up(numbers if self.squares is None else [*numbers, self.squares])
        self.failures, self.counts = to_host(numbers)

    def statistics(self, read: Sequence[int], loss_factors: FloatArray) -> GradientStatistics:
        """Computes the statistics.

        Args:
            read: Numbers of the parameters that count.
            loss_factors: `[num_streams]`: factors on the streams' losses.

        Returns:
            The statistics; NaN for a stream without items, and wherever gradients were not finite.
        """
        chosen = list(read)
        counts, items, num_squared = self.counts
        with np.errstate(all="ignore"):
            to_mean = items.sum() / items / loss_factors  # from the share of the whole loss to the stream's mean loss
            known = to_host([self.sums.products(), *([] if self.squares is None else [self.squares])])
            products, scale = known[0][chosen], np.outer(to_mean, to_mean)
            gram = products.sum(0) * scale
            squared_norm, variance = np.full((2, len(counts)), np.nan)
            if self.squares is not None:
                own = known[1][chosen].sum(0) * (to_mean * items) ** 2
                squared_norm, of_item = signal_and_noise(np.diagonal(gram) * items**2, own, items, num_squared)
                variance = of_item * counts / items  # a sample is a mean over several items
            return GradientStatistics(
                gram=gram,
                variance=variance,
                squared_norm=squared_norm,
                counts=counts.astype(np.int64),
                shares=items * loss_factors / (items * loss_factors).sum(),
                gram_error=_error(products, self.sums.relative_variances.numpy()[chosen]) * np.abs(scale),
            )


def _error(products: FloatArray, relative_variances: FloatArray) -> FloatArray:
    """Bounds the standard deviation of sums of products with independent errors."""
    norms = np.diagonal(products, axis1=1, axis2=2)
    error: FloatArray = np.sqrt(np.einsum("p,pi,pj->ij", relative_variances, norms, norms))
    return error
