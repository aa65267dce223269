"""Totals over micro-batches and ranks, and the statistics that follow from them."""

from collections.abc import Sequence

import numpy as np
import torch

from mixer.distributed.gradient_sync import add_up
from mixer.gradients.probe.rows import Rows
from mixer.gradients.probe.sketch import Projection
from mixer.gradients.probe.sums import ExactSums, LinearSums, Target
from mixer.policies.gradient_statistics import GradientStatistics, signal_and_noise
from mixer.utils.arrays import FloatArray


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
        self, targets: Sequence[Target], num_streams: int, projections: Sequence[Projection] | None, wants_squares: bool
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
        add_up(self.sums.kept)
        numbers = [torch.from_numpy(part).to(device) for part in (self.failures, self.counts)]
        add_up(numbers if self.squares is None else [*numbers, self.squares])
        self.failures, self.counts = (part.cpu().numpy() for part in numbers)

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
                gram_error=_error(products, self.sums.relative_variances.numpy()[chosen]) * np.abs(scale),
            )


def _error(products: FloatArray, relative_variances: FloatArray) -> FloatArray:
    """Bounds the standard deviation of sums of products with independent errors."""
    norms = np.diagonal(products, axis1=1, axis2=2)
    error: FloatArray = np.sqrt(np.einsum("p,pi,pj->ij", relative_variances, norms, norms))
    return error
