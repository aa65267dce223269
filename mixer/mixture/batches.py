"""The order of a stream that is made of whole batches: those that keep equal rows apart, or those of a user's code."""

import bisect
import copy
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mixer.mixture.permutation import Permutation
from mixer.mixture.stream import Batches, Stream
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.validation import MOST_COUNT, whole_number

_MOST_PASSES_KEPT = 4


class Pass(NamedTuple):
    """The batches of a pass.

    Args:
        rows: int64 `[num_rows]`: their rows, one batch after the other.
        ends: int64 `[num_batches]`: where each batch ends in them.
    """

    rows: Int64Array
    ends: Int64Array


class Passes:
    """Numbers the positions of a stream through the batches of one pass after the other.

    Args:
        stream: The stream, with `batches`.
        batch_size: Samples of a step.
        seed: What its batches are made with.
        least: Rows of the smallest batch that is taken.
        first: Number of the first pass that is asked for.
        start: Position of its first row.
    """

    def __init__(self, stream: Stream, batch_size: int, seed: int, least: int = 1, first: int = 0, start: int = 0):
        self._stream, self._batch_size, self._seed, self._least = stream, batch_size, seed, least
        self._first = first
        self._starts = [start]  # of the passes from the first one on
        self._of = functools.lru_cache(_MOST_PASSES_KEPT)(self._made)

    def at(self, position: int) -> tuple[int, int, Pass]:
        """Returns the pass of a position: its number, the position of its first row, and its batches."""
        while position >= self._starts[-1]:
            last = self._of(self._first + len(self._starts) - 1)
            self._starts.append(self._starts[-1] + len(last.rows))
        place = bisect.bisect_right(self._starts, position) - 1
        return self._first + place, self._starts[place], self._of(self._first + place)

    def _made(self, number: int) -> Pass:
        make: Batches | None = self._stream.batches
        assert make is not None, "only streams with batches have this order"  # noqa: S101
        made = [np.asarray(batch, dtype=np.int64) for batch in make(self._batch_size, number, self._seed)]
        batches = [batch for batch in made if len(batch) >= self._least]
        rows = np.concatenate([np.zeros(0, np.int64), *batches])
        if not len(rows) or rows.min() < 0 or rows.max() >= self._stream.num_samples:
            found = "none" if not len(rows) else f"rows from {rows.min()} to {rows.max()}"
            raise InvalidValueError(
                option="batches",
                stream=self._stream.name,
                expected=f"lists of row numbers below {self._stream.num_samples}, at least one in each pass",
                found=found,
                hint="A smaller batch size, or more rows, may give batches.",
            )
        return Pass(rows, np.cumsum([len(batch) for batch in batches]))


class BatchedOrder:
    """Cursor over a stream that gives whole batches; see `Cursor`.

    A pass is as long as its batches are together. The next batch is what is available.

    Args:
        stream: The stream, with `batches`.
        batch_size: Samples of a step.
        run_seed: Seed of the run, for streams without their own.
        drops: Whether to leave smaller batches out.
    """

    def __init__(self, stream: Stream, batch_size: int, run_seed: int, drops: bool = False):
        self._stream, self._key, self.length = stream, stream.order_key(run_seed), stream.num_samples
        seed = self._key % 2**31  # what generators of all libraries take
        self._made_with = stream, batch_size, seed, batch_size if drops else 1
        self._most_passes = None if stream.max_epochs is None else int(stream.max_epochs)
        self._passes, self.position = Passes(*self._made_with), 0
        self._drawn: Int64Array = np.zeros(0, np.int64)
        self._shuffled = Permutation(self.length, self._key)

    @property
    def available(self) -> int:
        """Rows left of the batch that is next; 0 after the last one."""
        most = self._stream.max_samples
        if most is not None and self.position >= most:
            return 0
        number, start, batches = self._passes.at(self.position)
        if self._most_passes is not None and number >= self._most_passes:
            return 0
        offset = self.position - start
        left = int(batches.ends[np.searchsorted(batches.ends, offset, side="right")]) - offset
        return left if most is None else min(left, most - self.position)

    def advance(self, count: int) -> int:
        """Reserves the next rows; see `Cursor.advance`."""
        start = self.position
        self.position += count
        self._drawn = np.arange(start, self.position)
        return start

    def references(self, positions: range | Int64Array) -> Int64Array:
        """Maps positions to rows; see `Cursor.references`."""
        places = np.asarray(positions, dtype=np.int64)
        rows = np.empty(len(places), dtype=np.int64)
        done = 0
        while done < len(places):
            _, start, batches = self._passes.at(int(places[done]))
            stop = int(np.searchsorted(places, start + len(batches.rows)))
            rows[done:stop] = batches.rows[places[done:stop] - start]
            done = stop
        return rows

    def any_rows(self, positions: range | Int64Array) -> Int64Array:
        """Maps positions to rows in shuffled order, without regard to batches, for what is measured beside the run."""
        places = np.asarray(positions, dtype=np.int64)
        return self._shuffled.map_positions(np.zeros(len(places), np.int64), places)

    def origins(self) -> tuple[list[str], Int64Array]:
        """Returns the stream and the row of each sample that was drawn last, for the ledger."""
        return [self._stream.name] * len(self._drawn), self.references(self._drawn)

    def lookahead_copy(self) -> "BatchedOrder":
        """Returns a copy for lookahead; see `Cursor.lookahead_copy`."""
        return copy.copy(self)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, and the pass that it is in, as plain data."""
        number, start, _ = self._passes.at(self.position)
        own = {"position": self.position, "pass": number, "pass_start": start}
        return {**own, "length": self.length, "key": self._key, "shuffle": "batches"}

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Restores a saved position.

        Args:
            state: Result of `state_dict`.
            allow_inexact: Whether to begin another pass if the data set, the seed or the kind of order has changed.

        Raises:
            ValueError: If one of them has.
        """
        own = self.state_dict()
        position = whole_number(state["position"], "position", most=MOST_COUNT)
        for field in ("shuffle", "length", "key"):
            if state.get(field) != own[field]:
                if not allow_inexact:
                    raise wrong_value(field, f"was {state.get(field)} when the run was saved and is {own[field]} now")
                self._passes, self.position = Passes(*self._made_with, 0, position), position
                return
        number, start = (whole_number(state[name], name, most=MOST_COUNT) for name in ("pass", "pass_start"))
        self._passes, self.position = Passes(*self._made_with, number, min(start, position)), position
