"""Normalisation of a loss, detected by trial, so that the step's gradient is that of the whole batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mixer.utils.arrays import FloatArray, Int64Array

LossKind = Literal["sum", "item mean", "row mean", "other"]

# Largest share of a model's loss besides the sum over the rows, such as an auxiliary loss of experts. A user's own loss
# has to be that sum.
LARGEST_OTHER_SHARE = 0.1
EXACT_SHARE = 1e-3
_KINDS: tuple[LossKind, ...] = ("sum", "item mean", "row mean", "other")
# Largest relative error of a loss predicted from its parts, in single and in half precision.
TOLERANCE, HALF_TOLERANCE = 3e-4, 4e-3
# Means over items and over rows are distinguished only if the wrong one is off by so many tolerances.
_CLEARLY = 3.0
# Indices of the ranks' votes, which are summed: on the normalisation, and on the kind of the loss.
_COUNTS, _IGNORES, _SCALED, _UNKNOWN, _NEEDS_KIND = range(5)
_ROW_MEANS, _TENTATIVE, _ROWS_UNKNOWN, _OTHER_ITEMS = range(len(_KINDS), len(_KINDS) + 4)
UNDECIDED = torch.zeros(5, dtype=torch.float64)
NO_KIND = torch.zeros(len(_KINDS) + 4, dtype=torch.float64)


@dataclass(frozen=True)
class LossNormalization:
    """The normalisation of `compute_loss` on a micro-batch.

    Args:
        counts_items: Whether it divides by `num_items_in_batch`; if not, see `kind`. About 284 heads accept the
            argument and ignore it, and the Trainer's own gradient is then too large by the number of ranks times the
            number of micro-batches (huggingface/transformers#47688).
        factor: Its factor if it counts items: the number of ranks in the Trainer's own form, else 1.
        rows_known: Whether the loss consists of the row losses that the reader sees.
        kind: Sum over items, mean over items, mean over rows, or none of these. A loss that counts items is a sum, or
            none of these.
        has_row_means: Whether a row's term in a mean over rows is the mean over its items.
        is_tentative: Whether means over items and over rows could not be distinguished yet.
        is_guess: Whether its kind was not seen at all, because the loss was 0 or not finite.
    """

    counts_items: bool
    factor: float
    rows_known: bool
    kind: LossKind = "item mean"
    has_row_means: bool = False
    is_tentative: bool = False
    is_guess: bool = False

    @property
    def is_clear_if_even(self) -> bool:
        """Whether rows with equal items say nothing new of it: its row losses are its mean, by items and by rows."""
        return self.rows_known and not self.is_guess

    @property
    def counts_rows(self) -> bool:
        """Whether rows are the items of the loss."""
        return self.kind == "row mean"

    @property
    def is_plain_sum(self) -> bool:
        """Whether the loss is not divided by anything."""
        return self.kind == "sum" and not self.counts_items

    def divisor(self, num_items: int, micro_items: int, world_size: int) -> float:
        """Returns the divisor of a micro-batch's loss.

        DDP averages gradients over the ranks, so a micro-batch must contribute the sum of its item losses times
        `world_size / num_items`.

        Args:
            num_items: Divisor of the sum over the step's items: their number; 1 for a plain sum.
            micro_items: Items of the micro-batch.
            world_size: Number of ranks.

        Returns:
            The divisor; infinite for a micro-batch without items.
        """
        if self.counts_items:
            return self.factor / world_size
        if self.is_plain_sum:
            return num_items / world_size
        return num_items / (micro_items * world_size) if micro_items else float("inf")


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


@dataclass(frozen=True)
class Seen:
    """A loss on some rows.

    Args:
        loss: The loss.
        rows: float64 `[num_rows]`: the sum of each row's item losses; `None` if they are unknown.
        items: int64 `[num_rows]`: items of each row.
    """

    loss: float
    rows: FloatArray | None
    items: Int64Array


@dataclass(frozen=True)
class KindFound:
    """The kind of a loss.

    Args:
        kind: The kind.
        rows_known: Whether it consists of the row losses that the reader sees.
        has_row_means: See `LossNormalization`.
        is_tentative: See `LossNormalization`.
    """

    kind: LossKind
    rows_known: bool = False
    has_row_means: bool = False
    is_tentative: bool = False


def find_kind(whole: Seen, parts: Sequence[Seen], tolerance: float = TOLERANCE) -> KindFound | None:
    """Detects the kind of a loss that does not count items.

    If the row losses are known and explain the loss, they decide. If not, the parts do: a sum over the whole is the sum
    over the parts, a mean over items or rows is the mean of the parts' losses weighted by their items or rows.

    Args:
        whole: The loss on some rows.
        parts: The losses on parts of these rows.
        tolerance: Largest relative error of a prediction.

    Returns:
        The kind, or `None` if the loss is 0 or not finite.
    """
    losses = np.array([whole.loss, *(part.loss for part in parts)])
    if not np.isfinite(losses).all() or whole.loss == 0:
        return None
    close = tolerance * abs(whole.loss)
    found = kind_by_rows(whole, tolerance)
    if found is not None:
        return found
    items = np.array([part.items.sum() for part in parts])
    rows = np.array([len(part.items) for part in parts])
    of_parts = losses[1:]
    if abs(of_parts.sum() - whole.loss) <= close:
        return KindFound("sum")
    by_item = abs((of_parts * items).sum() / max(items.sum(), 1) - whole.loss)
    by_row = abs((of_parts * rows).sum() / rows.sum() - whole.loss)
    if min(by_item, by_row) > close:
        return KindFound("other")
    # If all rows have equal items, or all parts the same loss, any mean would be this one.
    is_tentative = max(by_item, by_row) <= _CLEARLY * close
    return KindFound("item mean" if is_tentative or by_item <= by_row else "row mean", is_tentative=is_tentative)


def kind_by_rows(whole: Seen, tolerance: float = TOLERANCE) -> KindFound | None:
    """Detects the kind of a loss by the losses of its rows.

    Args:
        whole: The loss on some rows.
        tolerance: Largest relative error of a prediction.

    Returns:
        The kind, or `None` if the rows are unknown or do not explain the loss.
    """
    rows, close = whole.rows, tolerance * abs(whole.loss)
    if rows is None or whole.loss == 0:
        return None
    means = rows / np.maximum(whole.items, 1)
    if abs(rows.sum() - whole.loss) <= close:
        return KindFound("sum", rows_known=True)
    by_item = abs(rows.sum() / max(whole.items.sum(), 1) - whole.loss)
    by_mean = abs(means.mean() - whole.loss)
    if by_item <= close or by_mean <= close:
        is_tentative = max(by_item, by_mean) <= _CLEARLY * close
        if is_tentative or by_item < by_mean:
            return KindFound("item mean", rows_known=True, is_tentative=is_tentative)
        return KindFound("row mean", rows_known=True, has_row_means=True)
    if abs(rows.mean() - whole.loss) <= close:
        return KindFound("row mean", rows_known=True)
    return None


def try_normalization(
    compute_loss: Callable[[int, bool], Tensor],
    row_losses: Callable[[], Tensor | None],
    num_items: int,
    micro_items: int,
    world_size: int,
    largest_other_share: float = LARGEST_OTHER_SHARE,
    is_stock: bool = True,
) -> Tensor:
    """Computes one micro-batch's loss for `N` and for `2N` items to see its normalisation.

    Args:
        compute_loss: Computes the loss of the micro-batch for a `num_items_in_batch`, with the Trainer's averaging over
            devices on or off.
        row_losses: Returns the reader's row losses of the last forward pass.
        num_items: Items of the whole step.
        micro_items: Items of the micro-batch.
        world_size: Number of ranks.
        largest_other_share: Largest share of the loss besides the sum over the rows.
        is_stock: Whether the loss is that of a model of transformers, which is a mean over items if it looks like one.

    Returns:
        This rank's votes, float64 `[5]`, to sum over ranks. All 0 if the loss says nothing.
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
    needs_kind = unknown or not (is_stock or counts_items)
    return torch.tensor([counts_items, not counts_items, scaled, unknown, needs_kind], dtype=torch.float64)


def vote_on_kind(found: KindFound | None, has_other_items: bool = False) -> Tensor:
    """Converts this rank's result to votes.

    Args:
        found: The kind; `None` if it is unknown.
        has_other_items: Whether the parts explain the loss if its items are counted in another way.

    Returns:
        float64 `[8]`, to sum over ranks.
    """
    votes = NO_KIND.clone()
    votes[_OTHER_ITEMS] = float(has_other_items)
    if found is not None:
        votes[_KINDS.index(found.kind)] = not found.is_tentative
        votes[_ROW_MEANS], votes[_TENTATIVE] = float(found.has_row_means), float(found.is_tentative)
        votes[_ROWS_UNKNOWN] = not found.rows_known
    return votes


def needs_kind(votes: Tensor) -> bool:
    """Whether any rank has to detect the kind of a loss too.

    Args:
        votes: float64 `[5]`: the sum of `try_normalization` over ranks.
    """
    return bool(votes[_NEEDS_KIND] > 0)


def counts_other_items(votes: Tensor) -> bool:
    """Whether the loss has other items than those that were counted.

    Args:
        votes: float64 `[8]`: the sum of `vote_on_kind` over ranks.

    Returns:
        Whether more ranks found that than a kind for the items as counted.
    """
    kinds = dict(zip(_KINDS, votes.tolist(), strict=False))
    return bool(votes[_OTHER_ITEMS] > sum(kinds.values()) - kinds["other"])


def decide(votes: Tensor, world_size: int, of_kind: Tensor | None = None) -> LossNormalization | None:
    """Decides on a normalisation by the votes of all ranks.

    Args:
        votes: float64 `[5]`: the sum of `try_normalization` over ranks.
        world_size: Number of ranks.
        of_kind: float64 `[8]`: the sum of `vote_on_kind` over ranks; `None` if no rank needs the kind.

    Returns:
        The normalisation, or `None` if no rank could detect it yet.
    """
    yes, no, scaled, unknown, _ = votes.tolist()
    if yes + no == 0:
        return None
    counts_items, factor = yes >= no, float(world_size) if scaled > 0 else 1.0
    kind: LossKind = "sum" if counts_items else "item mean"
    if of_kind is None:
        return LossNormalization(counts_items, factor, unknown == 0, kind)
    numbers = dict(zip(_KINDS, of_kind.tolist(), strict=False))
    if not any(numbers.values()):  # unknown on all ranks: rows with equal items, or rows that cannot be separated
        has_seen = bool(of_kind[_TENTATIVE] > 0)
        rows_known = of_kind[_ROWS_UNKNOWN] == 0 if has_seen else unknown == 0
        return LossNormalization(counts_items, factor, bool(rows_known), kind, is_tentative=True, is_guess=not has_seen)
    kind = "other" if numbers["other"] else max(_KINDS, key=lambda one: numbers[one])
    if kind == "other" and unknown == 0:  # except for a part that belongs to no row
        return LossNormalization(counts_items, factor, True, "sum" if counts_items else "item mean")
    if counts_items and kind != "sum":
        kind = "other"
    is_explained = of_kind[_ROWS_UNKNOWN] == 0 or (kind == "item mean" and unknown == 0)
    rows_known = kind != "other" and not counts_items and is_explained
    return LossNormalization(counts_items, factor, bool(rows_known), kind, bool(of_kind[_ROW_MEANS] > 0))
