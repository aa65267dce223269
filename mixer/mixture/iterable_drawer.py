"""What an iterable stream draws next: rows that have no other name than their position."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.mixture.stream import Stream
from mixer.utils.arrays import Int64Array
from mixer.utils.bounded import MOST_COUNT, whole_number


class IterableCursor:
    """Draws an iterable data set: its next rows, whichever they are.

    How many there are is not known before the end. Whoever reads them says how many are left once a rank has seen it.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: Stream):
        self._max_passes = None if stream.max_epochs is None else int(stream.max_epochs)
        self._position = self._num_passes = self._pass_start = self._longest_pass = 0
        self._left: int | None = None
        self.undelivered = 0

    @property
    def is_over(self) -> bool:
        """Whether the last pass has ended."""
        return self._num_passes == self._max_passes

    @property
    def is_in_last_pass(self) -> bool:
        """Whether no pass follows the present one."""
        return self._max_passes is not None and self._num_passes + 1 >= self._max_passes

    @property
    def available(self) -> int | None:
        """Number of rows left, or `None` as long as the end of the last pass is not in sight."""
        return self._left

    @property
    def num_unique(self) -> int:
        """Number of different rows that were drawn: those of the longest pass."""
        return min(self._position, max(self._longest_pass, self._position - self._pass_start))

    def limit(self, num_left: int | None) -> None:
        """Says how many rows are left.

        Args:
            num_left: How many over all ranks; `None` if no rank has seen the end of the last pass.
        """
        self._left = num_left

    def end_pass(self, num_kept: int, num_undelivered: int) -> None:
        """Notes that a pass is over.

        Args:
            num_kept: Rows over all ranks that are left of this pass and those before, and drawn if a pass follows.
            num_undelivered: Rows over all ranks that it had left when one of them had none.
        """
        self._num_passes += 1
        to_draw = 0 if self.is_over else num_kept
        end = self._position + to_draw
        self._longest_pass = max(self._longest_pass, end - self._pass_start)
        self._pass_start = end
        self.undelivered += num_undelivered + num_kept - to_draw
        self._left = 0 if self.is_over else None

    def advance(self, count: int) -> int:
        """Reserves the next rows; see `mixer.mixture.cursors.Cursor.advance`."""
        start = self._position
        self._position += count
        if self._left is not None:
            self._left -= count
        return start

    def references(self, positions: range | Int64Array) -> Int64Array:
        """Gives the positions themselves: a row has no other name."""
        return np.asarray(positions, dtype=np.int64)

    def ahead(self) -> "IterableCursor":
        """Gives a copy to look ahead with; see `mixer.mixture.cursors.Cursor.ahead`."""
        return copy.copy(self)

    def state_dict(self) -> dict[str, Any]:
        """Gives how far all ranks together are; see `mixer.mixture.cursors.Cursor.state_dict`."""
        return {
            "position": self._position,
            "passes": self._num_passes,
            "pass_start": self._pass_start,
            "longest_pass": self._longest_pass,
            "left": self._left,
            "undelivered": self.undelivered,
        }

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Takes up how far all ranks together were.

        Args:
            state: What `state_dict` gave.
            allow_inexact: Begins anew where the data set was no iterable one.

        Raises:
            ValueError: If the data set was no iterable one.
        """
        if "passes" not in state:
            if allow_inexact:
                return
            raise ValueError("the data set had a length when the run was saved and is an iterable one now")
        names = ("position", "passes", "pass_start", "longest_pass", "undelivered")
        counts = {name: whole_number(state[name], name, most=MOST_COUNT) for name in names}
        self._position, self._num_passes = counts["position"], counts["passes"]
        self._pass_start, self._longest_pass = counts["pass_start"], counts["longest_pass"]
        self._left = None if state["left"] is None else whole_number(state["left"], "left", most=MOST_COUNT)
        self.undelivered = counts["undelivered"]
