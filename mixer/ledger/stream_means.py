"""Means over the items of several steps, stream by stream."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array


class StreamMeans:
    """Averages a figure of each stream over its items, where it is finite.

    Args:
        num_streams: Number of streams.

    Example:
        >>> losses = StreamMeans(2)
        >>> _ = losses.add(np.array([1.0, np.nan]), np.array([3, 5]))
        >>> _ = losses.add(np.array([2.0, np.nan]), np.array([1, 0]))
        >>> losses.of(0), losses.of(1)
        (1.25, None)
    """

    def __init__(self, num_streams: int):
        self.items: Int64Array = np.zeros(num_streams, dtype=np.int64)
        self.sums: FloatArray = np.zeros(num_streams)

    def add(self, means: FloatArray, items: Int64Array) -> FloatArray:
        """Takes a step in.

        Args:
            means: `[num_streams]`: the figure, a mean per item.
            items: int64 `[num_streams]`: how many items.

        Returns:
            `[num_streams]`: its sums over the items; 0 where the mean is not finite.
        """
        finite = np.isfinite(means)
        sums: FloatArray = np.where(finite, means, 0.0) * items
        self.items += np.where(finite, items, 0)
        self.sums += sums
        return sums

    def of(self, stream_id: int) -> float | None:
        """Gives the mean of a stream.

        Args:
            stream_id: The stream.

        Returns:
            The mean, or `None` if there were no items of which it is known.
        """
        return float(self.sums[stream_id] / self.items[stream_id]) if self.items[stream_id] else None

    def state_dict(self) -> dict[str, Any]:
        """Gives what was added up, as plain data."""
        return {"items": self.items.tolist(), "sums": self.sums.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what was added up.

        Args:
            state: What `state_dict` gave.
        """
        self.items = np.array(state["items"], dtype=np.int64)
        self.sums = np.array(state["sums"], dtype=np.float64)
