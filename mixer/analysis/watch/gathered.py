"""What a terminal view shows of a run, gathered from rows of its ledger as they come."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from mixer.analysis.watch.curve import Curve
from mixer.utils.arrays import FloatArray

_RECENT_STEPS = 50


@dataclass
class GatheredStream:
    """A stream of a run.

    Args:
        last: Its newest row.
        losses: Its loss by step.
        recent_losses: Its loss in each of the last steps.
        recent_counts: Its samples in each of the last steps.
        is_finite: Whether its last loss is finite; `None` if it has not had any.
    """

    last: dict[str, Any] = field(default_factory=dict)
    losses: Curve = field(default_factory=Curve)
    recent_losses: FloatArray = field(default_factory=lambda: np.empty(0))
    recent_counts: FloatArray = field(default_factory=lambda: np.empty(0))
    is_finite: bool | None = None

    @property
    def recent_loss(self) -> float:
        """Its mean loss over the last steps; NaN without any, and if its last one is not finite."""
        if self.is_finite is False:
            return float("nan")
        known = self.recent_losses[np.isfinite(self.recent_losses)]
        return float(known.mean()) if len(known) else float("nan")


class Gathered:
    """A run's newest rows, and curves of all of them."""

    def __init__(self) -> None:
        self.clock: dict[str, Any] = {}
        self.losses = Curve()
        self.evaluations: dict[str, float] = {}
        self.evaluated_at: int | None = None
        self._streams: dict[str, GatheredStream] = {}
        self._measures_norm = False
        self._timings: dict[str, FloatArray] = {}

    @property
    def streams(self) -> dict[str, GatheredStream]:
        """The streams of the last step, by name and in order."""
        last_step = self.last_step  # looked up once: it goes over all streams
        return {name: one for name, one in self._streams.items() if one.last["step"] == last_step}

    @property
    def is_finite(self) -> dict[str, bool | None]:
        """Whether the loss and the gradient_norm of the last step are finite; `None` for one that is not known."""
        loss, norm = self.clock.get("loss"), self.clock.get("gradient_norm")
        return {
            "loss": None if loss is None else math.isfinite(loss),
            # NaN is also what is written where nobody measures it.
            "gradient_norm": math.isfinite(norm) if norm is not None and self._measures_norm else None,
        }

    @property
    def last_step(self) -> int:
        """Number of the last step."""
        return max((one.last["step"] for one in self._streams.values()), default=0)

    def shares(self) -> dict[str, float]:
        """Gives each stream's share in the samples of the last steps."""
        counts = {name: float(one.recent_counts.sum()) for name, one in self.streams.items()}
        total = sum(counts.values())
        return {name: count / total if total else 0.0 for name, count in counts.items()}

    def recent(self, timing: str) -> float:
        """Adds up a column of the timings over the last steps.

        Args:
            timing: Name of a column of the ledger's `steps`.

        Returns:
            The sum; NaN without any.
        """
        values = self._timings.get(timing, np.empty(0))
        return float(np.nansum(values)) if len(values) else float("nan")

    @property
    def loading_share(self) -> float:
        """Share of loading in the time of loading and training of the last steps; NaN where nobody timed them."""
        load, train = self.recent("load_seconds"), self.recent("train_seconds")
        return load / (load + train) if load + train > 0 else float("nan")

    @property
    def seconds_per_step(self) -> float:
        """Seconds of loading and training of a step of late, without the optimizer step."""
        length = len(self._timings.get("load_seconds", ()))
        return (self.recent("load_seconds") + self.recent("train_seconds")) / length if length else float("nan")

    # ---- Rows ----

    def take_streams(self, rows: pa.Table) -> None:
        """Takes rows of the table `streams` in.

        Args:
            rows: In their order.
        """
        if not rows.num_rows:
            return
        names = rows.column("stream").combine_chunks().dictionary_encode()
        ids = names.indices.to_numpy()
        order, ends = np.argsort(ids, kind="stable"), np.cumsum(np.bincount(ids))
        losses, counts, items = (_numbers(rows, column) for column in ("loss", "count", "items"))
        for name, places in zip(names.dictionary.to_pylist(), np.split(order, ends[:-1]), strict=True):
            stream = self._streams.setdefault(name, GatheredStream())
            stream.last = rows.slice(places[-1], 1).to_pylist()[0]
            stream.losses.extend(losses[places])
            stream.recent_losses = _last(stream.recent_losses, losses[places])
            stream.recent_counts = _last(stream.recent_counts, counts[places])
            with_items = losses[places][items[places] > 0]
            stream.is_finite = bool(np.isfinite(with_items[-1])) if len(with_items) else stream.is_finite

    def take_clock(self, rows: pa.Table) -> None:
        """Takes rows of the table `clock` in.

        Args:
            rows: In their order.
        """
        if rows.num_rows:
            self.clock = rows.slice(rows.num_rows - 1).to_pylist()[0]
            self.losses.extend(_numbers(rows, "loss"))
            self._measures_norm |= not np.isnan(_numbers(rows, "gradient_norm")).all()

    def take_timings(self, rows: pa.Table) -> None:
        """Takes rows of the table `steps` in.

        Args:
            rows: In their order.
        """
        for name in rows.column_names:
            self._timings[name] = _last(self._timings.get(name, np.empty(0)), _numbers(rows, name))

    def take_evaluations(self, rows: pa.Table) -> None:
        """Takes rows of the table `evaluations` in.

        Args:
            rows: In their order.
        """
        for row in rows.to_pylist():
            loss = row["loss"]  # a table that somebody made may lack it
            self.evaluations[row["stream"]], self.evaluated_at = math.nan if loss is None else loss, row["step"]


def _numbers(rows: pa.Table, column: str) -> FloatArray:
    return np.asarray(rows.column(column).to_numpy(), dtype=np.float64)


def _last(known: FloatArray, new: FloatArray) -> FloatArray:
    return np.concatenate([known, new[-_RECENT_STEPS:]])[-_RECENT_STEPS:]
