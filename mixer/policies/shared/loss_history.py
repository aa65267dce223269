"""Loss curves of the streams, in a bounded number of points."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value
from mixer.utils.saved_state import HasState


class LossHistory(HasState):
    """Losses of streams over amounts of data, thinned to at most `max_points` points per stream.

    A point is the mean of the logarithms of amount and loss over a block of consecutive losses of a stream (exact for a
    power law, and smooths the noise of single batches). Blocks start with one loss each; when a stream has `max_points`
    of them, neighbours are joined and later blocks are twice as long. So memory and the cost of a fit are bounded
    however long the run, and points stay evenly spaced in steps.

    Args:
        max_points: Largest number of points per stream; even.

    Raises:
        ValueError: If that is odd or below 8.
    """

    def __init__(self, max_points: int):
        if not isinstance(max_points, int) or max_points < 8 or max_points % 2:
            raise wrong_value(
                "max_points", f"must be an even number, 8 or more, got {max_points}; 64 is plenty for a fit."
            )
        self.max_points = max_points
        self.start(0)

    def start(self, num_streams: int) -> None:
        """Discards all losses."""
        self._points = np.zeros((2, num_streams, self.max_points))  # log amounts, log losses
        self._num_points = np.zeros(num_streams, dtype=np.int64)
        self._block_sizes = np.ones(num_streams, dtype=np.int64)
        self._open_sums = np.zeros((2, num_streams))
        self._open_counts = np.zeros(num_streams, dtype=np.int64)

    def take(self, amounts: FloatArray, losses: FloatArray) -> None:
        """Adds losses to the open blocks; those that are not positive and finite are ignored.

        Args:
            amounts: `[num_streams]`: data before each loss, in any unit.
            losses: `[num_streams]`: NaN for a stream without one.
        """
        streams = np.flatnonzero(np.isfinite(losses) & (losses > 0.0) & (amounts > 0.0))
        self._open_sums[:, streams] += np.log([amounts[streams], losses[streams]])
        self._open_counts[streams] += 1
        closed = streams[self._open_counts[streams] == self._block_sizes[streams]]
        self._points[:, closed, self._num_points[closed]] = self._open_sums[:, closed] / self._block_sizes[closed]
        self._num_points[closed] += 1
        self._open_sums[:, closed], self._open_counts[closed] = 0.0, 0
        self._join(closed[self._num_points[closed] == self.max_points])

    def _join(self, streams: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        half, points = self.max_points // 2, self._points[:, streams]
        points[:, :, :half] = (points[:, :, 0::2] + points[:, :, 1::2]) / 2.0
        points[:, :, half:] = 0.0
        self._points[:, streams] = points
        self._num_points[streams] = half
        self._block_sizes[streams] *= 2

    def points(self, stream: int) -> tuple[FloatArray, FloatArray]:
        """Returns a stream's curve, without the open block.

        Returns:
            Logarithms of amounts and of losses, each `[num_points]`.
        """
        log_amounts, log_losses = self._points[:, stream, : self._num_points[stream]]
        return log_amounts, log_losses

    def state_dict(self) -> dict[str, Any]:
        """Returns the curves as JSON-compatible data."""
        return {
            "points": [np.array(self.points(stream)).tolist() for stream in range(len(self._num_points))],
            "block_sizes": self._block_sizes.tolist(),
            "open_sums": self._open_sums.tolist(),
            "open_counts": self._open_counts.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads saved curves, after `start`; longer ones are thinned.

        Args:
            state: The result of `state_dict`, of any `max_points`.
        """
        self.start(len(state["points"]))
        self._block_sizes = np.array(state["block_sizes"], dtype=np.int64)
        self._open_sums = np.array(state["open_sums"], dtype=np.float64)
        self._open_counts = np.array(state["open_counts"], dtype=np.int64)
        for stream, saved in enumerate(state["points"]):
            points = self._thinned(stream, np.array(saved, dtype=np.float64))
            self._num_points[stream] = points.shape[1]
            self._points[:, stream, : points.shape[1]] = points

    def _thinned(self, stream: int, points: FloatArray) -> FloatArray:
        """Joins neighbours while there are too many; the last of an odd number starts the open block."""
        while points.shape[1] >= self.max_points:
            if points.shape[1] % 2:
                self._open_sums[:, stream] += points[:, -1] * self._block_sizes[stream]
                self._open_counts[stream] += self._block_sizes[stream]
                points = points[:, :-1]
            points = (points[:, 0::2] + points[:, 1::2]) / 2.0
            self._block_sizes[stream] *= 2
        return points
