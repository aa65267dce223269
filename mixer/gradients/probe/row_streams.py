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
        num_present: Number of streams with rows.
        present: int64 `[num_present]`: these streams.
        sizes: Their numbers of rows.
        are_even: Whether they have equally many.
        local: For each row, in the order of the streams, the position of its stream in `present`.
        stream_ids: int64 `[num_rows]`: the streams, on the device.
        local_ids: int64 `[num_rows]`: their positions in `present`.
        lengths: Numbers of tokens per row of the tensors so far, padding included.
    """

    def __init__(self, stream_ids: Int64Array, num_items: Int64Array, num_streams: int, device: torch.device):
        self.num_rows = len(stream_ids)
        self.counts = np.bincount(stream_ids[num_items > 0], minlength=num_streams)
        self.num_items = np.bincount(stream_ids, weights=num_items, minlength=num_streams)
        self.num_squared = np.bincount(stream_ids, weights=num_items**2, minlength=num_streams)
        order = np.argsort(stream_ids, kind="stable")
        present, local, sizes = np.unique(stream_ids, return_inverse=True, return_counts=True)
        self.num_present = len(present)
        self.local: list[int] = local[order].tolist()
        self.sizes: list[int] = sizes.tolist()
        self.present, self.local_ids, self.stream_ids, self._order = (
            torch.from_numpy(ids).to(device, non_blocking=True) for ids in (present, local, stream_ids, order)
        )
        self.are_even = len(set(self.sizes)) == 1
        self._is_sorted = bool((order[1:] > order[:-1]).all())
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

    def in_order(self, values: Tensor) -> Tensor:
        """Sorts rows by stream.

        Args:
            values: `[num_rows, ...]`.

        Returns:
            The same values, if the rows are in the order of the streams.
        """
        return values if self._is_sorted else values.index_select(0, self._order)

    def by_stream(self, values: Tensor) -> Sequence[Tensor]:
        """Groups values by stream.

        Args:
            values: `[num_rows, length, features]`, in order.

        Returns:
            For each present stream `[1, its rows · length, features]`, or all in one if the streams have equally many
            rows; views.
        """
        if self.are_even:
            return [values.reshape(self.num_present, -1, values.shape[2])]
        return torch.split(values.flatten(0, 1)[None], [size * values.shape[1] for size in self.sizes], dim=1)


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
