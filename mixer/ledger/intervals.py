"""Rows that cover an interval of steps: of very many streams one row per step would take gigabytes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.saved_state import HasState

MOST_STREAMS = 256  # with a row per step each
_ROWS_A_STEP = 100  # of more streams, on average: at most 10 kB
_SUMS = frozenset({"count", "items", "tokens", "labels"})
_MEANS_OF_STEPS = frozenset({"weight", "policy_weight", "loss_weight"})


def default_interval(num_streams: int) -> int:
    """Chooses the number of steps that a row covers: bytes per step stay bounded for any number of streams.

    Example:
        >>> [default_interval(num_streams) for num_streams in (256, 257, 10_000)]
        [1, 3, 100]
    """
    return 1 if num_streams <= MOST_STREAMS else -(-num_streams // _ROWS_A_STEP)


class StreamMeans(HasState):
    """Means of a figure over each stream's items, without those that are not finite.

    Args:
        num_streams: Number of streams.

    Example:
        >>> losses = StreamMeans(2)
        >>> _ = losses.add(np.array([1.0, np.nan]), np.array([3, 5]))
        >>> _ = losses.add(np.array([2.0, np.nan]), np.array([1, 0]))
        >>> losses.of(0), losses.of(1), losses.values.tolist()
        (1.25, None, [1.25, nan])
    """

    remembered = ("items", "sums")

    def __init__(self, num_streams: int):
        self.items: Int64Array = np.zeros(num_streams, dtype=np.int64)
        self.sums: FloatArray = np.zeros(num_streams)

    def add(self, means: FloatArray, items: Int64Array) -> FloatArray:
        """Adds a step.

        Args:
            means: `[num_streams]`: the figure, a mean per item.
            items: int64 `[num_streams]`: number of items.

        Returns:
            `[num_streams]`: its sums over the items; 0 if the mean is not finite.
        """
        finite = np.isfinite(means)
        sums: FloatArray = np.where(finite, means, 0.0) * items
        self.items += np.where(finite, items, 0)
        self.sums += sums
        return sums

    def of(self, stream_id: int) -> float | None:
        """Gives the mean of a stream, or `None` if it is not known of any item."""
        return float(self.sums[stream_id] / self.items[stream_id]) if self.items[stream_id] else None

    @property
    def values(self) -> FloatArray:
        """`[num_streams]`: the means; NaN where they are not known of any item."""
        means: FloatArray = np.divide(self.sums, self.items, out=np.full(len(self.sums), np.nan), where=self.items > 0)
        return means


class IntervalRows:
    """Rows of a table, one per stream for each interval of steps.

    Counts are summed exactly, losses are means over items and weights means over steps; all other columns are those of
    the last step. Intervals end at multiples of their length, and at `end`.

    Args:
        interval_steps: Number of steps of an interval; 1 leaves every step as it is.
        write: Takes the rows of a finished interval, by column.
    """

    def __init__(self, interval_steps: int, write: Callable[[Mapping[str, Any]], None]):
        self._interval_steps, self._write = interval_steps, write
        self._begin()

    def _begin(self) -> None:
        self._step = self._num_steps = 0
        self._names: tuple[str, ...] = ()
        self._columns: dict[str, NDArray[Any]] = {}
        self._means: dict[str, StreamMeans] = {}

    def add(self, step: int, names: tuple[str, ...], columns: Mapping[str, NDArray[Any]]) -> None:
        """Adds a step.

        Args:
            step: Its number, from 1.
            names: Names of the streams.
            columns: `[num_streams]` each: the columns beside step and stream, `items` among them.
        """
        if self._interval_steps == 1:
            self._write(_rows(step, names, columns))
            return
        if (self._step - 1) // self._interval_steps != (step - 1) // self._interval_steps:
            self.end()
        self._step, self._names, self._num_steps = step, names, self._num_steps + 1
        for name, values in columns.items():
            if name == "loss":
                self._means.setdefault(name, StreamMeans(len(names))).add(values, columns["items"])
            elif name in self._columns and name in _SUMS | _MEANS_OF_STEPS:
                self._columns[name] += values
            else:
                self._columns[name] = np.array(values)  # a copy: sums are added to it
        if step % self._interval_steps == 0:
            self.end()

    def end(self) -> None:
        """Ends the interval in progress, if it has a step."""
        if not self._num_steps:
            return
        columns = {
            name: values / self._num_steps if name in _MEANS_OF_STEPS else values
            for name, values in self._columns.items()
        }
        means = {name: means.values for name, means in self._means.items()}
        step, names = self._step, self._names
        self._begin()
        self._write(_rows(step, names, {**columns, **means}))


def _rows(step: int, names: tuple[str, ...], columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {"step": np.full(len(names), step), "stream": list(names), **columns}
