"""Sample rows of a micro-batch for trials of a loss, of different lengths, and their two halves."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixer.models.labels import IGNORED
from mixer.models.row_losses import num_rows
from mixer.utils.arrays import Int64Array

_MOST_ROWS = 8

Inputs = dict[str, Any]


def rows_to_try(
    inputs: Mapping[str, Any], num_samples: int, count_items: Callable[[Mapping[str, Any]], Tensor]
) -> tuple[Inputs, Inputs, Inputs] | None:
    """Selects a few rows of a micro-batch and splits them so that one half has more items per row.

    A micro-batch of one row gives it twice. If all rows have equally many items and some labels are ignored already,
    half of the items of one half are ignored too.

    Args:
        inputs: A collated micro-batch.
        num_samples: Number of samples in it.
        count_items: Counts the items of each row, `[num_rows]`.

    Returns:
        The rows, the half with fewer items, and the one with more; `None` if samples are no rows.
    """
    if num_rows(inputs) != num_samples or not num_samples:
        return None
    places = np.arange(num_samples) if num_samples > 1 else np.zeros(2, dtype=np.int64)
    items = count_items(inputs).cpu().numpy()
    if len(places) > _MOST_ROWS:
        by_items = np.argsort(items, kind="stable")
        places = np.sort(np.concatenate([by_items[: _MOST_ROWS // 2], by_items[-(_MOST_ROWS // 2) :]]))
    items = items[places]
    by_items = np.argsort(items, kind="stable")
    whole = rows_of(inputs, places, num_samples)
    fewer, more = np.sort(by_items[: len(places) // 2]), np.sort(by_items[len(places) // 2 :])
    if (items == items[0]).all():
        _ignore_half(whole, fewer)
    return whole, rows_of(whole, fewer, len(places)), rows_of(whole, more, len(places))


def rows_of(inputs: Mapping[str, Any], places: Int64Array, num_samples: int) -> Inputs:
    """Selects rows of a micro-batch.

    Args:
        inputs: The micro-batch.
        places: int64 `[num_selected]`: the rows.
        num_samples: Number of samples in it.

    Returns:
        The rows of every value with one entry per sample; other values as they are.
    """

    def pick(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == num_samples:
            return value[torch.from_numpy(places).to(value.device)]
        if isinstance(value, list | tuple) and len(value) == num_samples:
            return [value[place] for place in places.tolist()]
        return value

    return {name: pick(value) for name, value in inputs.items()}


def _ignore_half(inputs: Inputs, rows: Int64Array) -> None:
    """Ignores every second label of some rows, if the loss is known to accept ignored labels."""
    labels = inputs.get("labels")
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() < 2:
        return
    if bool(labels.eq(IGNORED).any()):
        counted = labels[rows].ne(IGNORED)
        labels[rows] = torch.where(counted & (counted.cumsum(dim=-1) % 2 == 0), IGNORED, labels[rows])
