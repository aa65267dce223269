"""How a loss is normalised: found out by asking it, so that the gradient is the one of the whole batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mixer.utils.arrays import FloatArray, Int64Array

LossKind = Literal["sum", "item mean", "row mean", "other"]

# Up to this share of a model's loss may be something else than the sum over the rows: an auxiliary loss of experts,
# say. A loss that a user computes has to be that sum.
LARGEST_OTHER_SHARE = 0.1
EXACT_SHARE = 1e-3
_KINDS: tuple[LossKind, ...] = ("sum", "item mean", "row mean", "other")
# How far a prediction of a loss from its parts may be off, relative to it, in single and in half precision.
TOLERANCE, HALF_TOLERANCE = 3e-4, 4e-3
# Means over items and over rows are told apart only where the wrong one is off by so many tolerances.
_CLEARLY = 3.0


@dataclass(frozen=True)
class LossNormalization:
    """What `compute_loss` gives for a micro-batch.

    Args:
        counts_items: Whether it divides by `num_items_in_batch`. If not it is what `kind` says of the micro-batch.
            About 284 heads accept the argument and ignore it, and the Trainer's own gradient is then too large by the
            number of ranks times the number of micro-batches (huggingface/transformers#47688).
        factor: What it multiplies by where it counts items: the number of ranks in the Trainer's own form, else 1.
        rows_known: Whether the loss is made of what the tracker sees of the rows.
        kind: What it is of its items: their sum, their mean, the mean over rows, or none of these. A loss that counts
            items is a sum, or none of these.
        has_row_means: Whether a row counts with the mean over its items, in a mean over rows.
        is_tentative: Whether means over items and over rows could not be told apart yet.
    """

    counts_items: bool
    factor: float
    rows_known: bool
    kind: LossKind = "item mean"
    has_row_means: bool = False
    is_tentative: bool = False

    @property
    def counts_rows(self) -> bool:
        """Whether rows are the items of the loss."""
        return self.kind == "row mean"

    @property
    def is_plain_sum(self) -> bool:
        """Whether the loss is divided by nothing."""
        return self.kind == "sum" and not self.counts_items

    def divisor(self, num_items: int, micro_items: int, world_size: int) -> float:
        """Gives what the loss of a micro-batch has to be divided by.

        DDP averages gradients over the ranks, so a micro-batch must contribute the sum of its item losses times
        `world_size / num_items`.

        Args:
            num_items: What the sum over the step's items is divided by: their number; 1 for a plain sum.
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
    factors: FloatArray = total * counted / np.maximum(items, 1)
    return factors


# Places of the ranks' votes, which are added up: on how a loss is normalised, and on its kind.
_COUNTS, _IGNORES, _SCALED, _UNKNOWN, _NEEDS_KIND = range(5)
_ROW_MEANS, _TENTATIVE, _ROWS_UNKNOWN, _OTHER_ITEMS = range(len(_KINDS), len(_KINDS) + 4)
UNDECIDED = torch.zeros(5, dtype=torch.float64)
NO_KIND = torch.zeros(len(_KINDS) + 4, dtype=torch.float64)


@dataclass(frozen=True)
class Seen:
    """What a loss gave for some rows.

    Args:
        loss: The loss.
        rows: float64 `[num_rows]`: the sum of each row's item losses; `None` where they cannot be told apart.
        items: int64 `[num_rows]`: items of each row.
    """

    loss: float
    rows: FloatArray | None
    items: Int64Array


@dataclass(frozen=True)
class KindFound:
    """What kind a loss is.

    Args:
        kind: The kind.
        rows_known: Whether it is made of what the tracker sees of the rows.
        has_row_means: See `LossNormalization`.
        is_tentative: See `LossNormalization`.
    """

    kind: LossKind
    rows_known: bool = False
    has_row_means: bool = False
    is_tentative: bool = False


def find_kind(whole: Seen, parts: Sequence[Seen], tolerance: float = TOLERANCE) -> KindFound | None:
    """Finds out what kind a loss is that does not count items.

    If the rows are seen and explain the loss, they tell. If not, the parts do: a sum over the whole is the sum over the
    parts, a mean over items or rows is the mean of the parts' losses weighted by their items or rows.

    Args:
        whole: What it gave for some rows.
        parts: What it gave for parts that make up these rows.
        tolerance: How far a prediction may be off, relative to the loss.

    Returns:
        The kind, or `None` if the loss says nothing yet: it is 0 or not finite.
    """
    losses = np.array([whole.loss, *(part.loss for part in parts)])
    if not np.isfinite(losses).all() or whole.loss == 0:
        return None
    close = tolerance * abs(whole.loss)
    if whole.rows is not None:
        found = _kind_by_rows(whole, whole.rows, close)
        if found is not None:
            return found
    items = np.array([part.items.sum() for part in parts])
    rows = np.array([len(part.items) for part in parts])
    of_parts = losses[1:]
    errors = {
        "sum": abs(of_parts.sum() - whole.loss),
        "item mean": abs((of_parts * items).sum() / max(items.sum(), 1) - whole.loss),
        "row mean": abs((of_parts * rows).sum() / rows.sum() - whole.loss),
    }
    if errors["sum"] <= close:
        return KindFound("sum")
    by_item, by_row = errors["item mean"], errors["row mean"]
    if min(by_item, by_row) > close:
        return KindFound("other")
    # All rows may count alike, or all parts have the same loss: then any mean would be this one.
    is_tentative = max(by_item, by_row) <= _CLEARLY * close
    return KindFound("item mean" if is_tentative or by_item <= by_row else "row mean", is_tentative=is_tentative)


def _kind_by_rows(whole: Seen, rows: FloatArray, close: float) -> KindFound | None:
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
    """Computes one micro-batch's loss for `N` and for `2N` items and sees what it does.

    Args:
        compute_loss: Gives the loss of the micro-batch for a `num_items_in_batch`, with the Trainer's averaging over
            devices on or off.
        row_losses: Gives what the tracker saw of the rows in the last forward.
        num_items: Items of the whole step.
        micro_items: Items of the micro-batch.
        world_size: Number of ranks.
        largest_other_share: Share of the loss that may be something else than the sum over the rows.
        is_stock: Whether the loss is that of a model of transformers: what looks like a mean over items then is one.

    Returns:
        This rank's votes, float64 `[5]`, to be added up over the ranks. All 0 if the loss says nothing.
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
    """Makes votes of what this rank found.

    Args:
        found: The kind; `None` for nothing.
        has_other_items: Whether the loss is one that the parts explain, if its items are counted in another way.

    Returns:
        float64 `[8]`, to be added up over the ranks.
    """
    votes = NO_KIND.clone()
    votes[_OTHER_ITEMS] = float(has_other_items)
    if found is not None:
        votes[_KINDS.index(found.kind)] = not found.is_tentative
        votes[_ROW_MEANS], votes[_TENTATIVE] = float(found.has_row_means), float(found.is_tentative)
        votes[_ROWS_UNKNOWN] = not found.rows_known
    return votes


def needs_kind(votes: Tensor) -> bool:
    """Says whether the ranks have to find out the kind of a loss too.

    Args:
        votes: float64 `[5]`: the sum of what `try_normalization` gave on each rank.

    Returns:
        Whether one of them asks for it.
    """
    return bool(votes[_NEEDS_KIND] > 0)


def counts_other_items(votes: Tensor) -> bool:
    """Says whether the loss has other items than those that were counted.

    Args:
        votes: float64 `[8]`: the sum of what `vote_on_kind` gave on each rank.

    Returns:
        Whether more ranks found that than a kind by the items as they were counted.
    """
    kinds = dict(zip(_KINDS, votes.tolist(), strict=False))
    return bool(votes[_OTHER_ITEMS] > sum(kinds.values()) - kinds["other"])


def decide(votes: Tensor, world_size: int, of_kind: Tensor | None = None) -> LossNormalization | None:
    """Makes a convention of all ranks' votes.

    Args:
        votes: float64 `[5]`: the sum of what `try_normalization` gave on each rank.
        world_size: Number of ranks.
        of_kind: float64 `[8]`: the sum of what `vote_on_kind` gave on each rank; `None` where nobody asked.

    Returns:
        The convention, or `None` if no rank could tell yet.
    """
    yes, no, scaled, unknown, _ = votes.tolist()
    if yes + no == 0:
        return None
    counts_items, factor = yes >= no, float(world_size) if scaled > 0 else 1.0
    kind: LossKind = "sum" if counts_items else "item mean"
    if of_kind is None:
        return LossNormalization(counts_items, factor, unknown == 0, kind)
    numbers = dict(zip(_KINDS, of_kind.tolist(), strict=False))
    if not any(numbers.values()):  # nobody can tell: rows that all count alike, or cannot be parted
        has_seen = bool(of_kind[_TENTATIVE] > 0)
        rows_known = of_kind[_ROWS_UNKNOWN] == 0 if has_seen else unknown == 0
        return LossNormalization(counts_items, factor, bool(rows_known), kind, is_tentative=True)
    kind = "other" if numbers["other"] else max(_KINDS, key=lambda one: numbers[one])
    if kind == "other" and unknown == 0:  # but for a part that is no row's
        return LossNormalization(counts_items, factor, True, "sum" if counts_items else "item mean")
    if counts_items and kind != "sum":
        kind = "other"
    is_explained = of_kind[_ROWS_UNKNOWN] == 0 or (kind == "item mean" and unknown == 0)
    rows_known = kind != "other" and not counts_items and is_explained
    return LossNormalization(counts_items, factor, bool(rows_known), kind, bool(of_kind[_ROW_MEANS] > 0))
