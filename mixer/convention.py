"""How a model's loss is normalised: found out by asking it, so that the gradient is the one of the whole batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Up to this share of the loss may be something else than the sum over the rows: an auxiliary loss of experts, say.
_LARGEST_OTHER_SHARE = 0.1


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


UNDECIDED = torch.zeros(4, dtype=torch.float64)


def try_convention(
    compute_loss: Callable[[int], Tensor],
    row_losses: Callable[[], Tensor | None],
    num_items: int,
    micro_items: int,
    world_size: int,
) -> Tensor:
    """Computes one micro-batch's loss for `N` and for `2N` items and sees what it does.

    Args:
        compute_loss: Gives the loss of the micro-batch for a `num_items_in_batch`.
        row_losses: Gives what the tracker saw of the rows in the last forward.
        num_items: Items of the whole update.
        micro_items: Items of the micro-batch.
        world_size: Number of ranks.

    Returns:
        This rank's votes, float64 `[4]`, to be added up over the ranks: for counting items, against it, for a factor
        that is the number of ranks, and for rows that cannot be told apart. All 0 if the loss says nothing.
    """
    loss = compute_loss(num_items).double()
    rows = row_losses()
    half = compute_loss(2 * num_items).double()
    row_losses()
    if micro_items == 0 or not torch.isfinite(loss) or loss == 0:
        return UNDECIDED.clone()
    counts_items = bool((loss - 2 * half).abs() < (loss - half).abs())
    total = None if rows is None else rows.double().sum()
    base = total / (num_items if counts_items else micro_items) if total is not None else loss
    scaled = counts_items and bool((loss - base * world_size).abs() <= (loss - base).abs())
    rest = (loss - base * (world_size if scaled else 1)).abs()
    unknown = total is None or bool(rest > _LARGEST_OTHER_SHARE * loss.abs())
    return torch.tensor([counts_items, not counts_items, scaled or unknown, unknown], dtype=torch.float64)


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
