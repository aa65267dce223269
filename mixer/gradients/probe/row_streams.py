"""The stream of each row of a micro-batch, and the rows of a layer's tensors."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from mixer.utils.arrays import Int64Array


class Rows:
    """The rows of a micro-batch and their streams.

    Args:
        stream_ids: int64 `[num_rows]`: the stream of each row.
        num_items: int64 `[num_rows]`: terms of the loss in each row.
        num_streams: Number of streams of the run.
        device: Device of the model.

    Attributes:
        lengths: Numbers of tokens per row of the tensors so far, padding included.
    """

    def __init__(self, stream_ids: Int64Array, num_items: Int64Array, num_streams: int, device: torch.device):
        self.num_rows = len(stream_ids)
        self.counts = np.bincount(stream_ids[num_items > 0], minlength=num_streams)
        self.num_items = np.bincount(stream_ids, weights=num_items, minlength=num_streams)
        self.num_squared = np.bincount(stream_ids, weights=num_items**2, minlength=num_streams)
        present, local = np.unique(stream_ids, return_inverse=True)
        self.num_present = len(present)
        self.local: list[int] = local.tolist()
        order = np.argsort(local, kind="stable")
        self.present, self.local_ids, self.stream_ids, self._order = (
            torch.from_numpy(ids).to(device, non_blocking=True) for ids in (present, local, stream_ids, order)
        )
        self._is_sorted = bool((order[1:] > order[:-1]).all())
        self._sizes: list[int] = np.bincount(local).tolist()
        self.lengths: set[int] = set()

    def split(self, values: Tensor) -> Tensor | None:
        """Reshapes a layer's tensor to rows.

        Args:
            values: `[num_rows, ..., features]`, or `[num_rows · length, features]` row after row, with a length that
                another tensor of this micro-batch had.

        Returns:
            `[num_rows, length, features]`; `None` if it does not consist of rows.
        """
        if values.dim() < 2:
            return None
        if values.shape[0] == self.num_rows:
            rows = values.reshape(self.num_rows, -1, values.shape[-1])
            self.lengths.add(rows.shape[1])
            return rows
        length, rest = divmod(values.shape[0], self.num_rows)
        if values.dim() == 2 and not rest and length in self.lengths:
            return values.reshape(self.num_rows, length, values.shape[-1])
        return None

    def by_stream(self, values: Tensor) -> Sequence[Tensor]:
        """Groups values by stream.

        Args:
            values: `[num_rows, length, features]`.

        Returns:
            For each present stream `[its rows · length, features]`; views, if the rows are in the order of the streams.
        """
        if not self._is_sorted:
            values = values.index_select(0, self._order)
        return torch.split(values.flatten(0, 1), [size * values.shape[1] for size in self._sizes])

    def add_up(self, per_row: Tensor) -> Tensor:
        """Sums rows by stream.

        Args:
            per_row: `[num_rows, features]`.

        Returns:
            `[num_present, features]`.
        """
        sums = torch.zeros(self.num_present, per_row.shape[1], dtype=per_row.dtype, device=per_row.device)
        return sums.index_add_(0, self.local_ids, per_row)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Returns the type for sums: that of the terms, or float32 if it is shorter."""
    return torch.promote_types(dtype, torch.float32)


def distinct(ids: Tensor, most: int) -> Tensor:
    """Returns the distinct values in order; the host does not wait for a GPU, to which their number is unknown.

    Args:
        ids: int64, of any shape.
        most: Largest number of distinct values.

    Returns:
        int64 `[num_distinct]`; on a GPU longer, with the last value repeated.
    """
    if ids.device.type == "cpu":
        found: Tensor = torch.unique(ids)
        return found
    ordered = ids.flatten().sort().values
    places = pad((ordered[1:] != ordered[:-1]).cumsum(0), (1, 0))
    return ordered[-1:].repeat(min(most, len(ordered))).scatter_(0, places, ordered)
