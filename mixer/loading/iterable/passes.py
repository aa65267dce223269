"""Chains passes over an iterable stream: a step can hold the last rows of one pass and the first of the next."""

import itertools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from transformers.utils import logging

from mixer.loading.iterable.source import RowSource
from mixer.mixture.bad_samples import first_whole
from mixer.utils.arrays import Int64Array

logger = logging.get_logger(__name__)
_NO_ROW: Any = object()


class ChainedRows:
    """Rows of a stream across passes.

    Rows left at the end of a pass form a tail, which is delivered before the next pass. Ranks have different numbers of
    rows left, so they exchange them: the tail is the same on every rank, and each takes its own positions of it.

    Args:
        source: Row source.
        name: Stream name.
    """

    def __init__(self, source: RowSource, name: str):
        self._source, self._name = source, name
        self._tail: list[Any] = []
        self._start = 0  # position in the stream of the first row of the tail
        self._last_row: Any = None  # of a tail
        self._left: list[list[Any]] = []  # this rank's rows left, of each pass, before they are exchanged
        # To restore the tail: state of the source, rows kept of each pass since then, tail rows delivered.
        self._anchor: dict[str, Any] | None = None
        self._drains: list[int] = []
        self._num_delivered = self._num_to_skip = 0

    @property
    def num_in_tail(self) -> int:
        """Rows in the tail, equal on every rank."""
        return len(self._tail)

    @property
    def has_left(self) -> bool:
        """Whether rows left have yet to be exchanged, equal on every rank."""
        return bool(self._left)

    def fill(self, num_rows: int) -> int:
        """Reads ahead.

        Args:
            num_rows: Rows of the current pass to have ready, unless it ends before.

        Returns:
            Rows of the current pass that are ready.
        """
        self._source.fill(num_rows)
        return self._source.num_ready

    def count(self, num_rows: int) -> tuple[int, int, bool, bool]:
        """Reads ahead to count the rows left in the current pass.

        Args:
            num_rows: Rows to have ready, unless the pass ends before.

        Returns:
            Rows ready, rows taken before, whether the pass goes on, and whether it has no row for this rank.
        """
        num_ready, num_taken = self.fill(num_rows), self._source.num_taken
        return num_ready, num_taken, self._source.remaining is None, num_ready + num_taken == 0

    def end_pass(self, num_rows: int) -> None:
        """Ends the current pass, keeps at most `num_rows` of its ready rows and starts the next pass."""
        if self._anchor is None:
            self._anchor = self._source.state_dict()
        self._left.append(self._source.take(min(num_rows, self._source.num_ready)))
        self._drains.append(len(self._left[-1]))
        self._source.end_pass()

    def pack_left(self) -> bytes:
        """Returns the rows to send to the other ranks."""
        try:
            return pickle.dumps(self._left, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # rows of any type
            logger.warning(
                "Stream %r: %d rows left at the end of a pass are lost: they cannot be sent to other ranks (%s: %s).",
                *(self._name, sum(map(len, self._left)), type(error).__name__, error),
            )
            return pickle.dumps([[] for _ in self._left])

    def share_left(self, packed: Sequence[bytes]) -> None:
        """Appends the rows left on all ranks to the tail, in turn.

        Args:
            packed: Result of `pack_left` of every rank, in order; empty if there is one rank.
        """
        parts = [pickle.loads(part) for part in packed] or [self._left]  # noqa: S301  # from the run's own ranks
        for left in zip(*parts, strict=True):
            in_turn = itertools.chain.from_iterable(itertools.zip_longest(*left, fillvalue=_NO_ROW))
            self._tail += [row for row in in_turn if row is not _NO_ROW]
        del self._tail[: self._num_to_skip]
        self._left, self._num_to_skip = [], 0
        last = first_whole(reversed(self._tail))
        self._last_row = self._last_row if last is None else last

    def advance(self, position: int) -> None:
        """Drops the tail's rows before a position of the stream."""
        num_dropped = min(position - self._start, len(self._tail))
        self._start = position
        self._num_delivered += num_dropped
        del self._tail[:num_dropped]
        if not self._tail and not self._left:
            self._anchor, self._drains, self._num_delivered = None, [], 0

    def take(self, positions: range | Int64Array) -> list[Any]:
        """Takes this rank's rows of a step.

        Args:
            positions: `[count]`, ascending: positions in the stream. Those after the tail are the source's next rows.
        """
        places = [int(position) - self._start for position in positions]
        rows = [self._tail[place] for place in places if place < len(self._tail)]
        return rows + self._source.take(len(places) - len(rows))

    def peek(self) -> Any:
        """Returns a row without consuming it, or `None`; see `RowSource.peek`."""
        rows = (first_whole(self._tail), self._source.peek(), self._last_row)
        return next((row for row in rows if row is not None), None)

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's position as plain data."""
        source = self._source.state_dict() if self._anchor is None else self._anchor
        return {"source": source, "drains": list(self._drains), "delivered": self._num_delivered}

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], rank: int, allow_inexact: bool = False) -> None:
        """Restores the ranks' positions; the rows left have then to be exchanged again.

        Args:
            states: States of all saving ranks, in order.
            rank: This rank.
            allow_inexact: See `RowSource.load_state_dict`.

        Raises:
            ValueError: If the next rows cannot be recovered.
        """
        self._source.load_state_dict([state["source"] for state in states], allow_inexact)
        own = states[min(rank, len(states) - 1)]
        for num_rows in own["drains"]:
            self._source.fill(num_rows)
            self.end_pass(num_rows)
        self._num_delivered = self._num_to_skip = int(own["delivered"])

    def stop(self) -> None:
        """Stops the workers."""
        self._source.stop()
