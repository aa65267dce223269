"""Which rows a run was trained on, and when: computed from the counts of its ledger and the inverse of its order."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from mixer.ledger.folder import open_ledger
from mixer.ledger.orders import ALONE, BY_LENGTH, IN_TURNS
from mixer.mixture.length_order import LengthOrder
from mixer.mixture.permutation import Permutation
from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import did_you_mean

_ROWS_AT_ONCE = 2**17


class _Part(NamedTuple):
    """A part of the run in which a stream kept its order.

    Args:
        order: The order; `None` for a stream that has no index.
        length: Its rows.
        steps: int64 `[num_steps]`: steps (of intervals, the last ones) with samples of the stream.
        firsts: int64 `[num_steps]`: the first step of each interval.
        starts: int64 `[num_steps]`: the first position of each.
        ends: int64 `[num_steps]`: the position after the last of each.
        left_out: int64 `[num_left_out]`: positions that were skipped.
    """

    order: Permutation | LengthOrder | None
    length: int
    steps: Int64Array
    firsts: Int64Array
    starts: Int64Array
    ends: Int64Array
    left_out: Int64Array

    def passes(self) -> range:
        """Numbers of the passes, from 0, that it took part in."""
        return range(int(self.starts[0]) // self.length, (int(self.ends[-1]) - 1) // self.length + 1)

    def places(self, positions: Int64Array) -> tuple[Int64Array, BoolArray]:
        """Finds the place in `steps` at which positions were drawn, and whether they were trained on."""
        at = np.searchsorted(self.starts, positions, side="right") - 1
        drawn = (at >= 0) & (positions < self.ends[at])
        return at, drawn & ~np.isin(positions, self.left_out)

    def hits(self, rows: Int64Array, number: int) -> BoolArray:
        """Whether rows were trained on in a pass."""
        assert self.order is not None, "only rows of streams with an index are looked up"  # noqa: S101
        return self.places(self.order.positions(rows, number))[1]


class Exposure:
    """Which rows a run was trained on, how often and when.

    Rows are indices into a stream's data set as it is trained on (`trainer.streams`), from 0. Nothing is stored by
    row: a row's positions are computed, at the cost of one inverse for each pass. Rows that a replay buffer gave count
    for the stream that they came from. A row counts in the step that it was drawn for, even if that step's update was
    left out because its gradient was not finite.

    Args:
        folder: Output folder of a trainer.
        lengths: Of each stream that was drawn in groups of similar length (`group_by_length`), the lengths of all rows
            by which it was: the column `length`, or the number of `input_ids`.

    Raises:
        ValueError: If there is no such run, or it was recorded by a version that did not write its order.

    Example:
        >>> exposure = Exposure("runs/demo/uniform")  # doctest: +SKIP
        >>> exposure.of("math", [17])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, lengths: Mapping[str, ArrayLike] | None = None):
        self._folder, self._ledger = Path(folder), open_ledger(folder)
        self._lengths = {name: np.asarray(own, dtype=np.int64) for name, own in (lengths or {}).items()}
        self._orders = self._ledger.read("orders").to_pandas()
        if self._orders.empty:
            text = f"The ledger of {folder} has no order: a version that did not keep it wrote it."
            raise InvalidValueError.about("run", text)
        self._counts = self._read_counts()
        self._steps: Int64Array = np.unique(self._counts["step"])
        self._left_out = self._ledger.read("left_out").to_pandas()
        self._replays = self._ledger.read("replays").to_pandas()
        self._parts: dict[str, list[_Part]] = {}

    @property
    def streams(self) -> list[str]:
        """Names of the streams whose rows have an index."""
        return list(dict.fromkeys(self._orders.loc[self._orders["kind"].map(_has_index), "stream"]))

    def of(self, stream: str, rows: ArrayLike) -> pd.DataFrame:
        """Finds when rows were trained on.

        Args:
            stream: Name of their stream.
            rows: Whole numbers `[num_rows]`: indices in its data set.

        Returns:
            One row each time, by step: row, step, pass (from 1), position (in the stream's order, from the start of
            its first pass), drawn_from (the stream, or a replay buffer, whose rows have no pass and position). Where
            a row of the ledger covers several steps, `first_step` is the first of them and `step` the last.

        Raises:
            ValueError: If the rows of the stream are not known, or one is out of range.
        """
        wanted = np.unique(np.asarray(rows, dtype=np.int64))
        parts = self._checked(stream, wanted)
        found = [self._found(stream, part, wanted, number) for part in parts for number in part.passes()]
        table = pd.concat([*found, self._replayed(stream, wanted)], ignore_index=True)
        table = table.sort_values(["step", "row", "position"], ignore_index=True)
        return table if self._ledger.interval_steps > 1 else table.drop(columns="first_step")

    def never(self, stream: str) -> Iterator[Int64Array]:
        """Finds the rows that were never trained on.

        Args:
            stream: Name of the stream.

        Yields:
            Their indices, ascending, a chunk at a time.

        Raises:
            ValueError: If the rows of the stream are not known.
        """
        parts = self._checked(stream, np.zeros(0, np.int64))
        num_rows = int(self._orders.loc[self._orders["stream"] == stream, "length"].iloc[-1])
        replayed = np.unique(self._replayed(stream)["row"])
        left = self._candidates(parts, num_rows)
        for begin in range(0, num_rows if left is None else len(left), _ROWS_AT_ONCE):
            end = begin + _ROWS_AT_ONCE
            rows = np.arange(begin, min(end, num_rows)) if left is None else left[begin:end]
            rows = rows[~np.isin(rows, replayed)]
            for part in parts:
                for number in part.passes() if len(rows) else ():
                    rows = rows[~part.hits(rows, number)]
            if len(rows):
                yield rows

    def at(self, step: int) -> pd.DataFrame:
        """Lists the rows of a step.

        Args:
            step: Number of the step; where a row of the ledger covers several, the rows of all of them.

        Returns:
            One row per sample: stream (that it came from), row (missing for an iterable stream, whose rows have no
            index), pass, position, drawn_from.

        Raises:
            ValueError: If the ledger does not hold the step.
        """
        place = int(np.searchsorted(self._steps, step))
        if not 1 <= step <= self._steps[-1] or self._steps[place] - step >= self._ledger.interval_steps:
            held = f"one of the steps in the ledger of {self._folder}, {self._steps[0]} to {self._steps[-1]}"
            raise InvalidValueError(option="step", expected=held, found=step)
        step = int(self._steps[place])
        first = int(self._steps[place - 1]) if place else 0
        kinds = dict(zip(self._orders["stream"], self._orders["kind"], strict=True))
        parts = [
            self._drawn(name, part, step)
            for name, kind in kinds.items()
            if kind not in ("memory", "batches")  # their rows are recorded
            for part in self._parts_of(name)
        ]
        replays = self._replays[(self._replays["step"] > first) & (self._replays["step"] <= step)].explode("rows")
        given = replays.rename(columns={"source": "stream", "stream": "drawn_from", "rows": "row"}).drop(columns="step")
        given["row"] = given["row"].where(given["row"] != -1)
        columns = ["stream", "row", "pass", "position", "drawn_from"]
        return _typed(pd.concat([*parts, given], ignore_index=True), columns)

    def _read_counts(self) -> pd.DataFrame:
        """Reads the counts of each step and stream, or of each interval."""
        counts: pd.DataFrame = self._ledger.read("streams", ["step", "stream", "count", "seen"]).to_pandas()
        if self._ledger.interval_steps == 1 or counts["stream"].nunique() > 1:
            return counts
        # The order of a single stream may change within an interval, where the end of an epoch is dropped.
        clock: pd.DataFrame = self._ledger.read("clock", ["step", "total", "samples"]).to_pandas()
        clock = clock.rename(columns={"total": "count", "samples": "seen"})
        return clock.assign(stream=counts["stream"].iloc[0])

    def _drawn(self, name: str, part: _Part, step: int) -> pd.DataFrame:
        places = np.flatnonzero(part.steps == step)
        empty = np.zeros(0, np.int64)
        positions = np.concatenate([empty, *(np.arange(part.starts[k], part.ends[k]) for k in places)])
        positions = positions[~np.isin(positions, part.left_out)]
        own: dict[str, Any] = {"stream": name, "position": positions, "drawn_from": name}
        if part.order is not None:
            rows = part.order.map_positions(np.zeros(len(positions), np.int64), positions)
            own |= {"row": rows, "pass": positions // part.length + 1}
        return pd.DataFrame(own)

    def _found(self, stream: str, part: _Part, rows: Int64Array, number: int) -> pd.DataFrame:
        """Finds when rows were drawn in a pass of a part of the run."""
        assert part.order is not None, "checked before"  # noqa: S101
        positions = part.order.positions(rows, number)
        at, hit = part.places(positions)
        at = at[hit]
        own = {"row": rows[hit], "first_step": part.firsts[at], "step": part.steps[at]}
        return _typed(pd.DataFrame({**own, "pass": number + 1, "position": positions[hit], "drawn_from": stream}))

    def _replayed(self, stream: str, rows: Int64Array | None = None) -> pd.DataFrame:
        """Finds when rows of a stream were replayed; all rows, if none are given."""
        given = self._replays[self._replays["source"] == stream].explode("rows")
        own = pd.DataFrame({"row": given["rows"], "first_step": given["step"], "step": given["step"]})
        own = own.assign(**{"pass": pd.NA, "position": pd.NA, "drawn_from": given["stream"]})
        return _typed(own[(own["row"] >= 0) if rows is None else own["row"].isin(rows)])

    def _candidates(self, parts: Sequence[_Part], num_rows: int) -> Int64Array | None:
        """Gives the rows that may never have been trained on; `None` for all.

        After a whole pass of the present data these are the skipped ones.
        """
        for part in parts:
            number = -(-int(part.starts[0]) // part.length)  # the first pass from its beginning
            is_whole = part.length == num_rows and (number + 1) * part.length <= int(part.ends[-1])
            if is_whole and np.array_equal(part.starts[1:], part.ends[:-1]) and part.order is not None:
                skipped = part.left_out[part.left_out // part.length == number]
                return np.unique(part.order.map_positions(np.zeros(len(skipped), np.int64), skipped))
        return None

    def _checked(self, stream: str, rows: Int64Array) -> list[_Part]:
        """Gives the parts of the run of a stream, once it is clear that its rows can be told."""
        known = self._orders[self._orders["stream"] == stream]
        if known.empty:
            hint = did_you_mean(stream, self.streams)
            text = f"There is none of the name {stream!r} in {self._folder}.{hint} {self.streams}"
            raise InvalidValueError.about("stream", text, found=stream)
        kind = known["kind"].iloc[-1]
        if not _has_index(kind):
            why = {
                "iterable": "is iterable: its rows have no index, so that nobody can tell which they were. at(step) "
                "gives their positions in the order in which they came",
                "memory": "is a replay buffer. Ask for the stream that its samples came from",
            }
            own = why.get(kind, f"was drawn in an order of another version ({kind})")
            raise InvalidValueError.about("stream", f"{stream!r} {own}.", found=stream)
        most = int(known["length"].max())
        if len(rows) and not (rows[0] >= 0 and rows[-1] < most):
            worst = rows[0] if rows[0] < 0 else rows[-1]
            numbers = f"numbers from 0 to {most - 1}"
            raise InvalidValueError(option="rows", stream=stream, expected=numbers, found=int(worst))
        parts = self._parts_of(stream)
        counts = self._counts[self._counts["stream"] == stream]
        if not counts.empty and int(counts["count"].sum()) != int(counts["seen"].iloc[-1]):
            text = f"The ledger of {self._folder} lacks steps, in which rows of {stream!r} were trained on"
            raise InvalidValueError.about("run", f"{text}: join it with the ledger of the machine that wrote them.")
        return parts

    def _parts_of(self, stream: str) -> list[_Part]:
        if stream not in self._parts:
            rows = self._orders[self._orders["stream"] == stream].to_dict("records")
            ends = [*(row["step"] for row in rows[1:]), np.inf]
            spans = [*zip(rows, ends, strict=True)]
            parts = [self._part(stream, row, end) for row, end in spans if row["kind"] != "batches"]
            self._parts[stream] = [part for part in parts if len(part.steps)]
        return self._parts[stream]

    def _part(self, stream: str, order: dict[str, Any], end: float) -> _Part:
        def own(table: pd.DataFrame) -> pd.DataFrame:
            in_part = (table["step"] >= order["step"]) & (table["step"] < end)
            part: pd.DataFrame = table[(table["stream"] == stream) & in_part]
            return part

        counts = own(self._counts)
        counts = counts[counts["count"] > 0]
        steps, stops = (counts[name].to_numpy() for name in ("step", "seen"))
        stops = stops + order["shift"]
        before: Int64Array = np.concatenate([np.zeros(1, np.int64), self._steps])[np.searchsorted(self._steps, steps)]
        length = max(int(order["length"]), 1)
        return _Part(
            self._order(stream, order, length),
            length,
            steps,
            before + 1,
            stops - counts["count"].to_numpy(),
            stops,
            own(self._left_out)["position"].to_numpy(),
        )

    def _order(self, stream: str, order: dict[str, Any], length: int) -> Permutation | LengthOrder | None:
        """Returns the order of a stream whose rows have an index."""
        kind, _, group_size = order["kind"].partition(BY_LENGTH)
        if kind != "data":
            return None
        plain = Permutation(length, order["key"], order["shuffle"])
        if not group_size:
            return plain
        lengths = self._lengths.get(stream)
        if lengths is None or len(lengths) != length:
            raise InvalidValueError(
                option="lengths",
                stream=stream,
                expected=f"the lengths of its {length} rows, because it was drawn in groups of similar length",
                found=None if lengths is None else f"{len(lengths)} lengths",
                hint=f"In Python, give them: Exposure({str(self._folder)!r}, lengths={{{stream!r}: [...]}}).",
            )
        size, _, turns = group_size.partition(IN_TURNS)
        own = lengths.__getitem__, int(turns.removesuffix(ALONE)), turns.endswith(ALONE)
        return LengthOrder(plain, length, float(size), *own)


def _has_index(kind: str) -> bool:
    """Whether rows of a kind of order have an index."""
    return kind.partition(BY_LENGTH)[0] in ("data", "batches")


def _typed(table: pd.DataFrame, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Gives whole numbers that may be missing their type, whatever the number of rows."""
    table = table.reindex(columns=list(table.columns if columns is None else columns))
    return table.astype({name: "Int64" for name in ("row", "pass", "position") if name in table.columns})
