"""The cursor of a buffer: slots picked by a retrieval, at positions that every rank counts alike."""

import bisect
import copy
from collections.abc import Mapping
from operator import index
from typing import Any, Protocol

import numpy as np

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from replay.memory.memory import Memory
from replay.retrieval import Retrieval
from replay.retrieval.base import checked_slots


class Draws(Protocol):
    """The rule that picks entries, and the number of samples drawn so far: a buffer, or a second draw of one."""

    retrieval: Retrieval
    num_drawn: int


class BufferCursor:
    """Draws from a buffer; see `mixer.mixture.stream.Cursor`.

    Copies (`ahead`) predict coming draws: they record where draws will begin, since a lookup depends on the entries
    drawn together. The slots of a completed draw stay fixed, even if the buffer changes.

    Args:
        buffer: The buffer.
        draws: A second draw of the buffer; `None` for the buffer itself.
    """

    def __init__(self, buffer: Memory, draws: Draws | None = None):
        self._buffer = buffer
        self._draws: Draws = buffer if draws is None else draws
        self._position = self._draws.num_drawn
        self.is_ahead = False
        self._last: tuple[int, Int64Array, Int64Array] = (0, np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._numbers: Int64Array = np.zeros(0, np.int64)
        self._origins: tuple[list[str], Int64Array] = ([], self._numbers)
        self._coming: dict[int, int] = {}  # positions at which draws are predicted to begin, and their counts

    @property
    def available(self) -> int | None:
        """Number of entries: no draw repeats one."""
        return len(self._buffer)

    def advance(self, count: int) -> int:
        """Draws the next entries; see `mixer.mixture.stream.Cursor.advance`."""
        start = self._position
        self._position += count
        if self.is_ahead:
            self._coming[start] = count
        else:
            self._draws.num_drawn = self._position
            for passed in [coming for coming in self._coming if coming < self._position]:
                del self._coming[passed]
            rule, size = self._draws.retrieval, len(self._buffer)
            slots = checked_slots(rule, start, count, size) if count else self._last[1][:0]
            self.assign(start, slots)
            if count:
                rule.drawn(start, slots)
        return start

    def assign(self, start: int, slots: Int64Array) -> None:
        """Sets the slots, int64 `[count]`, of the draw that begins at position `start`."""
        self._last = (start, slots, self._buffer.addresses(slots))
        self._numbers = self._buffer.numbers(slots)
        self._origins = self._buffer.origins(slots)

    def origins(self) -> tuple[list[str], Int64Array]:
        """Returns where the samples of the last draw came from; see `Memory.origins`."""
        return self._origins

    def slots(self, positions: Int64Array) -> Int64Array:
        """Returns the slots of positions of the last draw.

        Args:
            positions: int64 `[count]`: positions of the last draw.

        Raises:
            ValueError: If other entries occupy these slots by now.
        """
        start, slots, _ = self._last
        if not np.array_equal(self._buffer.numbers(slots), self._numbers):
            text = "The buffer was changed (forget, remember or load) during a step. Do so in a callback's on_step_end."
            raise InvalidValueError(text, option="buffer")
        return slots[positions - start]

    def references(self, positions: range | Int64Array) -> Int64Array:
        """Looks positions up, of the last draw or of predicted ones; see `mixer.mixture.stream.Cursor.references`."""
        wanted = np.asarray(positions, dtype=np.int64)
        start, slots, addresses = self._last
        if not len(wanted) or start <= wanted[0] < start + len(slots):
            return addresses[wanted - start]
        return self._predicted(wanted)

    def _predicted(self, positions: Int64Array) -> Int64Array:
        starts, first = sorted(self._coming), int(positions[0])
        number = bisect.bisect_right(starts, first) - 1
        start = starts[number] if number >= 0 else first
        size = len(self._buffer)
        count = min(self._coming.get(start, len(positions)), size)
        if not count:  # the buffer was emptied since: what is predicted is not what will be read
            return np.zeros_like(positions)
        addresses = self._buffer.addresses(checked_slots(self._draws.retrieval, start, count, size))
        return np.take(addresses, positions - start, mode="wrap")

    def lookahead_copy(self) -> "BufferCursor":
        """Returns a copy for lookahead; it records its draws for this cursor."""
        cursor = copy.copy(self)
        cursor.is_ahead = True
        return cursor

    def state_dict(self) -> dict[str, Any]:
        """Returns the position; the entries are part of the state of the buffer."""
        return {"position": self._position, "num_offered": self._buffer.num_offered, "memory": True}

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Loads a position.

        Args:
            state: A state from `state_dict`.
            allow_inexact: Whether to continue at the position of the buffer if the stream was not a buffer before.

        Raises:
            ValueError: If the stream was not a buffer, or the buffer is at another position.
        """
        if not state.get("memory"):
            if allow_inexact:
                return
            raise InvalidValueError(
                "the stream was a data set when it was saved, and is a buffer now", option="dataset"
            )
        buffer = self._buffer
        saved = index(state["position"]), index(state.get("num_offered", buffer.num_offered))
        own = self._draws.num_drawn, buffer.num_offered
        if saved != own and not allow_inexact:
            text = (
                f"{saved[0]} samples had been drawn from the buffer and {saved[1]} offered to it when the run was "
                f"saved, {own[0]} and {own[1]} with the one that is there now (in a loop of one's own, save the buffer "
                "after state_dict() was called, and load it first)"
            )
            raise InvalidValueError(text, option="buffer", expected=str(saved), found=own)
        self._position = self._draws.num_drawn
