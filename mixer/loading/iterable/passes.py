"""Chains passes over an iterable stream: a step can hold the last rows of one pass and the first of the next."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from mixer.loading.iterable.source import RowSource
from mixer.mixture.bad_samples import first_whole

ENDLESS = 2**62

_MOST_COUNTED = 1_000  # leftover rows of a rank are counted up to this number


class ChainedRows:
    """Rows of a stream across passes.

    Rows left over at the end of a pass form a tail, which is delivered before the next pass.

    Args:
        source: Row source.
    """

    def __init__(self, source: RowSource):
        self._source = source
        self._tail: deque[Any] = deque()
        # To restore the tail: state of the source, rows kept of each pass since then, tail rows delivered.
        self._anchor: dict[str, Any] | None = None
        self._drains: list[int] = []
        self._num_delivered = 0

    def fill(self, num_rows: int) -> tuple[int, int]:
        """Reads ahead.

        Tail rows do not count: a rank with a longer tail would reach the end of its pass later than the others, and
        could not report its remaining rows when they end the pass.

        Args:
            num_rows: Rows of the current pass to have ready, unless it ends before.

        Returns:
            Rows left in total and in the current pass; both `ENDLESS` until the end is known.
        """
        self._source.fill(num_rows)
        left = self._source.remaining
        return (ENDLESS, ENDLESS) if left is None else (len(self._tail) + left, left)

    def end_pass(self, num_rows: int) -> tuple[int, int]:
        """Ends the current pass, keeps its last rows and starts the next pass.

        Args:
            num_rows: Rows to keep, equal on every rank.

        Returns:
            Rows of this rank that are left from finished passes, and that are discarded.
        """
        if self._anchor is None:
            self._anchor = self._source.state_dict()
        self._drains.append(num_rows)
        self._tail.extend(self._source.take(num_rows))
        return len(self._tail), self._source.end_pass(_MOST_COUNTED)

    def take(self, num_rows: int) -> list[Any]:
        """Takes the next `num_rows` rows, at most as many as are ready."""
        from_tail = min(num_rows, len(self._tail))
        rows = [self._tail.popleft() for _ in range(from_tail)]
        self._num_delivered += from_tail
        if not self._tail:
            self._anchor, self._drains, self._num_delivered = None, [], 0
        return rows + self._source.take(num_rows - from_tail)

    def peek(self) -> Any:
        """Returns a row without consuming it, or `None`; see `RowSource.peek`."""
        row = first_whole(self._tail)
        return self._source.peek() if row is None else row

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's position as plain data."""
        source = self._source.state_dict() if self._anchor is None else self._anchor
        return {"source": source, "drains": list(self._drains), "given": self._num_delivered}

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], rank: int, allow_inexact: bool = False) -> None:
        """Restores the ranks' positions.

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
            self.end_pass(min(num_rows, self._source.num_ready))
        for _ in range(min(int(own["given"]), len(self._tail))):
            self._tail.popleft()
            self._num_delivered += 1

    def stop(self) -> None:
        """Stops the workers."""
        self._source.stop()
