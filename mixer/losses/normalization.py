"""What a loss is divided by, read off a micro-batch's loss and those of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray, Int64Array

LossKind = Literal["item mean", "items", "row means", "row sums", "sum"]
_KINDS: tuple[LossKind, ...] = get_args(LossKind)

# The kinds by the values of `loss_reduction`, which declares one.
DECLARED: dict[str, LossKind] = {"mean": "item mean", "sum": "sum", "items": "items"}
# Largest share of a model's loss besides the sum over the rows, such as an auxiliary loss of experts. A user's own loss
# has to be that sum.
LARGEST_OTHER_SHARE = 0.1
# Largest relative error of a loss predicted from its rows, in single and in half precision.
TOLERANCE, HALF_TOLERANCE = 3e-4, 4e-3


@dataclass(frozen=True)
class LossNormalization:
    """The normalisation of `compute_loss` on a micro-batch.

    About 284 heads accept `num_items_in_batch` and ignore it, and the Trainer's own gradient is then too large by the
    number of ranks times the number of micro-batches (huggingface/transformers#47688).

    Args:
        kind: Mean over items; sum over items divided by `num_items_in_batch`; mean over rows of the mean or of the sum
            over each row's items; sum.
        is_scaled: Whether it is multiplied by the number of ranks if it is given `num_items_in_batch`.
        rows_known: Whether it consists of the row losses that the reader sees.
        others: Kinds, each with `is_scaled`, that explain all losses seen so far as well.
    """

    kind: LossKind = "item mean"
    is_scaled: bool = False
    rows_known: bool = True
    others: tuple[tuple[LossKind, bool], ...] = ()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "LossNormalization":
        """Restores one from the fields of another."""
        pairs = [(state["kind"], state["is_scaled"]), *state["others"]]
        first, *others = (CANDIDATES[CANDIDATES.index(cls(kind, is_scaled))] for kind, is_scaled in pairs)
        pairs_left = tuple((other.kind, other.is_scaled) for other in others)
        return replace(first, rows_known=bool(state["rows_known"]), others=pairs_left)

    @property
    def counts_items(self) -> bool:
        """Whether it divides by `num_items_in_batch`."""
        return self.kind == "items"

    @property
    def counts_rows(self) -> bool:
        """Whether rows are the items of the loss."""
        return self.kind in ("row means", "row sums")

    @property
    def has_row_means(self) -> bool:
        """Whether a row's term in a mean over rows is the mean over its items."""
        return self.kind == "row means"

    @property
    def is_plain_sum(self) -> bool:
        """Whether the loss is not divided by anything."""
        return self.kind == "sum"

    def factor(self, world_size: int) -> int:
        """Returns its factor if it is given `num_items_in_batch`."""
        return world_size if self.is_scaled else 1

    def divisor(self, num_items: int, micro_items: int, world_size: int, is_given: bool = True) -> float:
        """Returns the divisor of a micro-batch's loss.

        DDP averages gradients over the ranks, so a micro-batch must contribute the sum of its item losses times
        `world_size / num_items`.

        Args:
            num_items: Divisor of the sum over the step's items: their number; 1 for a plain sum.
            micro_items: Items of the micro-batch.
            world_size: Number of ranks.
            is_given: Whether the loss is given `num_items_in_batch`; if not, it is a mean instead of divided by that.

        Returns:
            The divisor; infinite for a micro-batch without items.
        """
        factor = self.factor(world_size) if is_given else 1
        if self.counts_items and is_given:
            return factor / world_size
        if self.is_plain_sum:
            return factor * num_items / world_size
        return factor * num_items / (micro_items * world_size) if micro_items else float("inf")


CANDIDATES = tuple(LossNormalization(kind, is_scaled) for is_scaled in (False, True) for kind in _KINDS)


def predicted(rows: FloatArray, items: Int64Array, num_items: int, world_size: int) -> FloatArray:
    """Predicts a micro-batch's loss for each candidate, `[num_candidates]`.

    Args:
        rows: float64 `[num_rows]`: the sum of each row's item losses.
        items: int64 `[num_rows]`: items of each row.
        num_items: What the loss was given as `num_items_in_batch`.
        world_size: Number of ranks.
    """
    total, means = rows.sum(), rows / np.maximum(items, 1)
    plain = np.array([total / max(items.sum(), 1), total / num_items, means.mean(), rows.mean(), total])
    return np.concatenate([plain, plain * world_size])


def explaining(
    loss: float, predictions: FloatArray, allowed: BoolArray, tolerance: float, largest_other_share: float = 0.0
) -> BoolArray:
    """Finds the candidates that explain a loss, bool `[num_candidates]`.

    Args:
        loss: The loss.
        predictions: `[num_candidates]`: what they predict.
        allowed: bool `[num_candidates]`: candidates that are possible.
        tolerance: Largest relative error.
        largest_other_share: If none is that close, the closest counts with a part of up to this share besides its rows.
    """
    errors = np.where(allowed, np.abs(predictions - loss), np.inf)
    close = errors <= tolerance * abs(loss)
    if not close.any() and errors.min() <= largest_other_share * abs(loss):
        close = errors == errors.min()
    return close


def samples_per_item(counts: Int64Array, items: Int64Array) -> FloatArray:
    """Returns the factors that weight streams by their samples in a mean over items.

    Terms of different losses differ in kind, so their numbers say nothing about the weight of a stream. With these
    factors f, sum_k f_k (items_k / N) mean_k = sum_k (counts_k / n) mean_k, where N and n are the items and the samples
    of the streams that have items.

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
    factors: FloatArray = total * counted / np.maximum(items, 1)
    return factors
