"""The rows of an iterable stream pass after pass: a step may hold the last rows of one and the first of the next."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from mixer.loading.iterable.source import RowSource
from mixer.mixture.bad_samples import first_whole

ENDLESS = 2**62

# Rows that a rank has left when another has none are counted up to so many.
_MOST_COUNTED = 1_000


class ChainedRows:
    """Goes on from pass to pass.

    What is left of a pass that ends is kept as a tail, which is given before the next pass begins.

    Args:
        source: The rows, a pass at a time.
    """

    def __init__(self, source: RowSource):
        self._source = source
        self._tail: deque[Any] = deque()
        # How to come by the tail again: where the source was, what was taken of each pass since, how much was given.
        self._anchor: dict[str, Any] | None = None
        self._drains: list[int] = []
        self._num_given = 0

    @property
    def num_kept(self) -> int:
        """Number of rows left of passes that have ended."""
        return len(self._tail)

    def fill(self, num_rows: int) -> tuple[int, int]:
        """Reads ahead.

        The rows of the tail do not count: a rank that has more of them than others would see the end of its pass later
        than those, and could not say how many rows of it are left when they end it.

        Args:
            num_rows: Number of rows of the present pass that are ready afterwards, unless it ends before.

        Returns:
            Number of rows that are left in all, and of the present pass; both `ENDLESS` until its end is in sight.
        """
        self._source.fill(num_rows)
        left = self._source.remaining
        return (ENDLESS, ENDLESS) if left is None else (len(self._tail) + left, left)

    def end_pass(self, num_rows: int) -> int:
        """Keeps the last rows of the present pass and begins the next one.

        Args:
            num_rows: How many are kept; as many on every rank.

        Returns:
            Number of rows that this rank had left beyond them.
        """
        if self._anchor is None:
            self._anchor = self._source.state_dict()
        self._drains.append(num_rows)
        self._tail.extend(self._source.take(num_rows))
        return self._source.end_pass(_MOST_COUNTED)

    def take(self, num_rows: int) -> list[Any]:
        """Takes the next rows.

        Args:
            num_rows: How many, at most as many as are ready.

        Returns:
            The rows.
        """
        from_tail = min(num_rows, len(self._tail))
        rows = [self._tail.popleft() for _ in range(from_tail)]
        self._num_given += from_tail
        if not self._tail:
            self._anchor, self._drains, self._num_given = None, [], 0
        return rows + self._source.take(num_rows - from_tail)

    def peek(self) -> Any:
        """Gives a row without taking it, or `None`; see `RowSource.peek`."""
        row = first_whole(self._tail)
        return self._source.peek() if row is None else row

    def state_dict(self) -> dict[str, Any]:
        """Gives where this rank is, as plain data."""
        source = self._source.state_dict() if self._anchor is None else self._anchor
        return {"source": source, "drains": list(self._drains), "given": self._num_given}

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], rank: int, allow_inexact: bool = False) -> None:
        """Takes up where the ranks were.

        Args:
            states: What all ranks that saved gave, in order.
            rank: This rank.
            allow_inexact: See `RowSource.load_state_dict`.

        Raises:
            ValueError: If the very next rows cannot be had.
        """
        self._source.load_state_dict([state["source"] for state in states], allow_inexact)
        own = states[min(rank, len(states) - 1)]
        for num_rows in own["drains"]:
            self._source.fill(num_rows)
            self.end_pass(min(num_rows, self._source.num_ready))
        for _ in range(min(int(own["given"]), len(self._tail))):
            self._tail.popleft()
            self._num_given += 1

    def stop(self) -> None:
        """Ends workers."""
        self._source.stop()
