"""Measured gradients of streams, read without holding the products of all pairs at all times."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from mixer.measurements.gradients import GradientStatistics
from mixer.tools.records.clock import by_stream, on_clock
from mixer.utils.arrays import FloatArray, Int64Array

# Cosines are averaged over so many stretches of the data clock at most: more are narrower than can be seen.
_MOST_STRETCHES = 60
COLUMNS = ["step", "stream", "count", "share", "squared_norm", "variance", "gram"]


@dataclass(frozen=True)
class Cosines:
    """Cosines between the streams' gradients.

    Args:
        names: The streams.
        edges: `[num_stretches + 1]`: edges of the stretches, in epochs.
        stretches: `[num_stretches, num_streams, num_streams]`: means over the measurements of each; NaN without any.
        mean: `[num_streams, num_streams]`: mean over the whole run.
        error: `[num_streams, num_streams]`: standard error of that mean; NaN for fewer than two measurements.
        counts: `[num_streams, num_streams]`: number of measurements with both streams.
    """

    names: list[str]
    edges: FloatArray
    stretches: FloatArray
    mean: FloatArray
    error: FloatArray
    counts: Int64Array


Measured = tuple[Mapping[str, pd.DataFrame], pd.DataFrame, Cosines | None]  # by stream; noise; cosines


def read_gradients(table: pa.Table, clock: pd.DataFrame) -> Measured:
    """Reads the measurements of gradients.

    Args:
        table: `COLUMNS` of the ledger's table `gradients`.
        clock: See `on_clock`.

    Returns:
        `gradients`, `noise` and `cosines` of a `Run`; without rows if nothing was measured.
    """
    places = on_clock(pd.DataFrame({"step": np.unique(table.column("step").to_numpy())}), clock)
    epochs = dict(zip(places["step"], places["epoch"], strict=True))
    indices = {name: index for index, name in enumerate(dict.fromkeys(table.column("stream").to_pylist()))}
    sums, noise = _Sums(len(indices), _edges(places["epoch"])), []
    for step, names, statistics in measurements(table):
        if step in epochs:
            noise.append((step, *statistics.noise))
            sums.add(epochs[step], [indices[name] for name in names], statistics.cosines)
    return (
        by_stream(table.select(["step", "stream", "squared_norm", "variance"]), clock),
        on_clock(pd.DataFrame(noise, columns=["step", "signal", "noise"], dtype=np.float64), clock),
        sums.cosines(list(indices)),
    )


def _edges(epochs: pd.Series) -> FloatArray:
    end = float(epochs.iloc[-1]) if len(epochs) else 1.0
    return np.linspace(0.0, end, min(_MOST_STRETCHES, max(1, len(epochs))) + 1)


def measurements(table: pa.Table) -> Iterator[tuple[int, list[str], GradientStatistics]]:
    """Gives the measurements one by one: the step, names of the streams and the statistics, without errors.

    Args:
        table: `COLUMNS` of the ledger's table `gradients`.
    """
    steps = table.column("step").to_numpy()
    names = table.column("stream").to_pylist()
    columns = [table.column(name).to_numpy() for name in ("variance", "squared_norm", "count", "share")]
    ends = np.flatnonzero(np.diff(steps, append=-1)) + 1
    for start, end in zip([0, *ends], ends, strict=False):
        products = table.column("gram").slice(start, end - start).combine_chunks().flatten().to_numpy()
        gram = products.reshape(end - start, end - start)
        variance, squared_norm, counts, shares = (column[start:end] for column in columns)
        statistics = GradientStatistics(gram, variance, squared_norm, counts, shares, np.zeros_like(gram))
        yield int(steps[start]), names[start:end], statistics


class _Sums:
    """Sums of cosines by stretch."""

    def __init__(self, num_streams: int, edges: FloatArray):
        pairs = (num_streams, num_streams)
        self._edges = edges
        self._sums, self._counts = (np.zeros((len(edges) - 1, *pairs), dtype=kind) for kind in (np.float64, np.int32))
        self._squares = np.zeros(pairs)

    def add(self, epoch: float, streams: list[int], cosines: FloatArray) -> None:
        stretch = max(0, int(np.searchsorted(self._edges[:-1], epoch)) - 1)  # a step lies before its epoch
        is_known, pairs = np.isfinite(cosines), np.ix_(streams, streams)
        known = np.where(is_known, cosines, 0.0)
        self._sums[stretch][pairs] += known
        self._counts[stretch][pairs] += is_known
        self._squares[pairs] += known**2

    def cosines(self, names: list[str]) -> Cosines | None:
        counts, sums = self._counts.sum(0), self._sums.sum(0)
        if not np.triu(counts, 1).any():
            return None
        with np.errstate(invalid="ignore", divide="ignore"):  # a pair may not have been measured, or once only
            mean = sums / counts
            variance = np.maximum(0.0, self._squares - counts * mean**2) / np.where(counts > 1, counts - 1, np.nan)
            stretches = np.divide(self._sums, self._counts, out=self._sums)  # there may be many pairs
            return Cosines(names, self._edges, stretches, mean, np.sqrt(variance / counts), counts)
