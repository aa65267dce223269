"""Totals over micro-batches and ranks, and the statistics that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from mixer.distributed.gradient_sync import add_up
from mixer.gradients.probe.rows import Rows
from mixer.gradients.probe.sketch import Projection
from mixer.gradients.probe.sums import ExactSums, HeldSums, SketchSums, Sums, Target
from mixer.policies.gradient_statistics import GradientStatistics, signal_and_noise
from mixer.utils.arrays import FloatArray


@dataclass
class Totals:
    """Sums over the micro-batches since the start of a measurement.

    Args:
        sums: The streams' gradients.
        squares: float64 `[num_parameters, num_streams]`: squared norms of the gradients of the groups (samples, or
            micro-batches) behind the variance; `None` if it is not needed.
        failures: `[num_parameters]`: number of failures to read a parameter.
        counts: `[3, num_streams]`: samples, items, and the sum of the squares of the groups' items.
    """

    sums: Sums
    squares: Tensor | None
    failures: FloatArray
    counts: FloatArray

    @classmethod
    def empty(
        cls,
        targets: Sequence[Target],
        num_streams: int,
        projections: Sequence[Projection] | None,
        accumulates: bool,
        wants_squares: bool,
    ) -> "Totals":
        """Creates empty totals.

        Args:
            targets: The parameters.
            num_streams: Number of streams.
            projections: One projection per parameter; `None` for exact products.
            accumulates: Whether there is more than one micro-batch or rank.
            wants_squares: Whether squared norms are needed.
        """
        sums: Sums
        if projections is not None:
            sums = SketchSums(targets, num_streams, projections)
        else:
            sums = (HeldSums if accumulates else ExactSums)(targets, num_streams)
        shape = (len(targets), num_streams)
        squares = torch.zeros(shape, dtype=torch.float64, device=targets[0].device) if wants_squares else None
        return cls(sums, squares, np.zeros(len(targets)), np.zeros((3, num_streams)))

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
        add_up(self.sums.travelling())
        parts = [torch.from_numpy(part.reshape(-1)).to(device) for part in (self.failures, self.counts)]
        if self.squares is not None:
            parts.append(self.squares.reshape(-1))
        message = torch.cat(parts)
        dist.all_reduce(message)
        failures, counts, *squares = torch.split(message, [len(part) for part in parts])
        self.failures, self.counts = failures.cpu().numpy(), counts.cpu().numpy().reshape(self.counts.shape)
        if self.squares is not None:
            self.squares = squares[0].view_as(self.squares)

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
            products, scale = self.sums.products().numpy()[chosen], np.outer(to_mean, to_mean)
            gram = products.sum(0) * scale
            squared_norm, variance = np.full((2, len(counts)), np.nan)
            if self.squares is not None:
                own = self.squares.cpu().numpy()[chosen].sum(0) * (to_mean * items) ** 2
                squared_norm, of_item = signal_and_noise(np.diagonal(gram) * items**2, own, items, num_squared)
                variance = of_item * counts / items  # a sample is a mean over several items
            return GradientStatistics(
                gram=gram,
                variance=variance,
                squared_norm=squared_norm,
                counts=counts.astype(np.int64),
                shares=items * loss_factors / (items * loss_factors).sum(),
                gram_error=_error(products, self.sums.relative_variances().numpy()[chosen]) * np.abs(scale),
            )


def _error(products: FloatArray, relative_variances: FloatArray) -> FloatArray:
    """Bounds the standard deviation of sums of products with independent errors."""
    norms = np.diagonal(products, axis1=1, axis2=2)
    error: FloatArray = np.sqrt(np.einsum("p,pi,pj->ij", relative_variances, norms, norms))
    return error
