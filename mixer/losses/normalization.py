"""Normalisation of a loss, detected by trial, so that the step's gradient is that of the whole batch."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


class KindFound(NamedTuple):
    """The kind of a loss, as a rank has found it.

    Attributes:
        kind: The kind.
        rows_known: Whether it consists of the row losses that the reader sees.
        has_row_means: See `LossNormalization`.
        is_tentative: See `LossNormalization`.
        has_other_items: Whether the parts explain the loss if its items are counted in another way.
    """

    kind: LossKind
    rows_known: bool = False
    has_row_means: bool = False
    is_tentative: bool = False
    has_other_items: bool = False


class Tried(NamedTuple):
    """What a rank has seen of the normalisation of a loss.

    Attributes:
        counts_items: Whether the loss is divided by the number of items.
        is_scaled: Whether it is multiplied by the number of ranks.
        rows_unknown: Whether the rows' losses do not explain it.
        needs_kind: Whether the kind of the loss has to be detected too.
    """

    counts_items: bool
    is_scaled: bool
    rows_unknown: bool
    needs_kind: bool


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
    is_tentative = bool(max(by_item, by_row) <= _CLEARLY * close)
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
        is_tentative = bool(max(by_item, by_mean) <= _CLEARLY * close)
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
) -> Tried | None:
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
        What this rank has seen; `None` if the loss says nothing.
    """
    loss = compute_loss(num_items, True).double()
    rows = row_losses()
    half = compute_loss(2 * num_items, True).double()
    plain = compute_loss(num_items, False).double()
    if micro_items == 0 or not torch.isfinite(loss) or loss == 0:
        return None
    counts_items = bool((loss - 2 * half).abs() < (loss - half).abs())
    base = plain if rows is None else rows.double().sum() / (num_items if counts_items else micro_items)
    scaled = bool((loss - base * world_size).abs() <= (loss - base).abs())
    rest = (loss - base * (world_size if scaled else 1)).abs()
    unknown = rows is None or bool(rest > largest_other_share * loss.abs())
    return Tried(counts_items, scaled, unknown, unknown or not (is_stock or counts_items))


def counts_other_items(found: Sequence[KindFound]) -> bool:
    """Whether more ranks found other items of a loss than those counted than a kind for the items as counted."""
    num_kinds = sum(one.kind != "other" and not one.is_tentative for one in found)
    return sum(one.has_other_items for one in found) > num_kinds


def decide(
    tried: Sequence[Tried], world_size: int, found: Sequence[KindFound] | None = None
) -> LossNormalization | None:
    """Decides on a normalisation by what the ranks have seen.

    Args:
        tried: What the ranks have seen of the normalisation, without those that saw nothing.
        world_size: Number of ranks.
        found: The kinds that ranks have found; `None` if no rank needs the kind.

    Returns:
        The normalisation, or `None` if no rank could detect it yet.
    """
    if not tried:
        return None
    counts_items = 2 * sum(one.counts_items for one in tried) >= len(tried)
    factor = float(world_size) if any(one.is_scaled for one in tried) else 1.0
    rows_known, kind = not any(one.rows_unknown for one in tried), _KINDS[not counts_items]
    if found is None:
        return LossNormalization(counts_items, factor, rows_known, kind)
    numbers = Counter(one.kind for one in found if not one.is_tentative)
    are_explained = all(one.rows_known for one in found)
    if not numbers:  # unknown on all ranks: rows with equal items, or rows that cannot be separated
        rows_known = are_explained if found else rows_known
        return LossNormalization(counts_items, factor, rows_known, kind, is_tentative=True, is_guess=not found)
    of_most: LossKind = "other" if numbers["other"] else max(_KINDS, key=lambda one: numbers[one])
    if of_most == "other" and rows_known:  # except for a part that belongs to no row
        return LossNormalization(counts_items, factor, True, kind)
    if counts_items and of_most != "sum":
        of_most = "other"
    is_explained = of_most != "other" and not counts_items
    is_explained = is_explained and (are_explained or (of_most == "item mean" and rows_known))
    return LossNormalization(counts_items, factor, is_explained, of_most, any(one.has_row_means for one in found))
