"""How a model's loss is normalised: found out by asking it, so that the gradient is the one of the whole batch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Up to this share of a model's loss may be something else than the sum over the rows: an auxiliary loss of experts,
# say. A loss that a user computes has to be that sum.
LARGEST_OTHER_SHARE = 0.1
EXACT_SHARE = 1e-3


@dataclass(frozen=True)
class LossConvention:
    """What `compute_loss` gives for a micro-batch, as a multiple of the sum over its items.

    Args:
        counts_items: Whether it divides by `num_items_in_batch`. If not it is a mean over the micro-batch: about
            284 heads accept the argument and ignore it, and the Trainer's own gradient is then too large by the
            number of ranks times the number of micro-batches (huggingface/transformers#47688).
        factor: What it multiplies by where it counts items: the number of ranks in the Trainer's own form, else 1.
        rows_known: Whether the loss is the sum of what the tracker sees of the rows.
    """

    counts_items: bool
    factor: float
    rows_known: bool

    def divisor(self, num_items: int, micro_items: int, world_size: int) -> float:
        """Gives what the loss of a micro-batch has to be divided by.

        DDP averages gradients over the ranks, so a micro-batch must contribute the sum of its item losses times
        `world_size / num_items`.

        Args:
            num_items: Items of the whole update.
            micro_items: Items of the micro-batch.
            world_size: Number of ranks.

        Returns:
            The divisor; infinite for a micro-batch without items.
        """
        if self.counts_items:
            return self.factor / world_size
        return num_items / (micro_items * world_size) if micro_items else float("inf")


def samples_per_item(counts: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gives the factors by which streams count by their samples in a mean over items.

    Terms of different losses are of different kinds, so that their numbers say nothing about what a stream should
    count. With these factors f, sum_k f_k (items_k / N) mean_k = sum_k (counts_k / n) mean_k, where N and n are the
    items and the samples of the streams that have items.

    Args:
        counts: int64 `[num_streams]`: samples of each stream.
        items: int64 `[num_streams]`: their terms of the loss.

    Returns:
        `[num_streams]`; 0 for a stream without items.

    Example:
        >>> samples_per_item(np.array([6, 2]), np.array([6, 90])).round(3).tolist()
        [12.0, 0.267]
    """
    counted = np.where(items > 0, counts, 0)
    total = items.sum() / max(counted.sum(), 1)
    factors: NDArray[np.float64] = total * counted / np.maximum(items, 1)
    return factors


UNDECIDED = torch.zeros(4, dtype=torch.float64)


def try_convention(
    compute_loss: Callable[[int, bool], Tensor],
    row_losses: Callable[[], Tensor | None],
    num_items: int,
    micro_items: int,
    world_size: int,
    largest_other_share: float = LARGEST_OTHER_SHARE,
) -> Tensor:
    """Computes one micro-batch's loss for `N` and for `2N` items and sees what it does.

    Args:
        compute_loss: Gives the loss of the micro-batch for a `num_items_in_batch`, with the Trainer's averaging over
            devices on or off.
        row_losses: Gives what the tracker saw of the rows in the last forward.
        num_items: Items of the whole update.
        micro_items: Items of the micro-batch.
        world_size: Number of ranks.
        largest_other_share: Share of the loss that may be something else than the sum over the rows.

    Returns:
        This rank's votes, float64 `[4]`, to be added up over the ranks: for counting items, against it, for a factor
        that is the number of ranks, and for rows that cannot be told apart. All 0 if the loss says nothing.
    """
    loss = compute_loss(num_items, True).double()
    rows = row_losses()
    half = compute_loss(2 * num_items, True).double()
    plain = compute_loss(num_items, False).double()
    if micro_items == 0 or not torch.isfinite(loss) or loss == 0:
        return UNDECIDED.clone()
    counts_items = bool((loss - 2 * half).abs() < (loss - half).abs())
    base = plain if rows is None else rows.double().sum() / (num_items if counts_items else micro_items)
    scaled = bool((loss - base * world_size).abs() <= (loss - base).abs())
    rest = (loss - base * (world_size if scaled else 1)).abs()
    unknown = rows is None or bool(rest > largest_other_share * loss.abs())
    return torch.tensor([counts_items, not counts_items, scaled, unknown], dtype=torch.float64)


def decide(votes: Tensor, world_size: int) -> LossConvention | None:
    """Makes a convention of all ranks' votes.

    Args:
        votes: float64 `[4]`: the sum of what `try_convention` gave on each rank.
        world_size: Number of ranks.

    Returns:
        The convention, or `None` if no rank could tell yet.
    """
    yes, no, scaled, unknown = votes.tolist()
    if yes + no == 0:
        return None
    return LossConvention(yes >= no, float(world_size) if scaled > 0 else 1.0, unknown == 0)
