"""The interface of a retrieval: which entries of a buffer to replay next."""

from abc import ABC, abstractmethod

import numpy as np

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.saved_state import HasState


class Retrieval(HasState, ABC):
    """A rule for which entries to replay.

    Positions count the samples drawn from a buffer, from 0. A draw takes the next `count` positions, at most as many as
    there are entries, and repeats no entry. It is the same on every rank. A state is JSON-safe values and numpy arrays,
    by name, not nested.
    """

    @property
    def name(self) -> str:
        """Name of the retrieval in checkpoints."""
        return type(self).__name__

    @abstractmethod
    def start(self, capacity: int, key: int) -> None:
        """Starts with an empty buffer of `capacity` slots; `key` is a signed 64-bit random key."""

    @abstractmethod
    def slots(self, start: int, count: int, size: int) -> Int64Array:
        """Returns the slots of a draw; changes nothing, so that coming draws can be predicted.

        Args:
            start: Position of the draw: the next one, or a later one if the buffer stays as it is.
            count: Number of entries, at most `size`.
            size: Number of entries in the buffer.

        Returns:
            int64 `[count]`: distinct slots.
        """

    def drawn(self, start: int, slots: Int64Array) -> None:  # most rules need not know
        """Called after a draw, with its position and the result of `slots`, int64 `[count]`."""

    def placed(self, slots: Int64Array) -> None:  # most rules need not know
        """Called after new entries were stored, in new slots or in place of other entries.

        Args:
            slots: int64 `[count]`: distinct slots, in the order in which they were filled.
        """

    def removed(self, slot: int, last: int) -> None:  # most rules need not know
        """Called after an entry was removed: the entry in slot `last` moved to `slot`."""


def checked_slots(retrieval: Retrieval, start: int, count: int, size: int) -> Int64Array:
    """Returns the slots of a draw; see `Retrieval.slots`.

    Raises:
        ValueError: If they are not as many different occupied slots.
    """
    found = np.asarray(retrieval.slots(start, count, size))
    is_whole = found.dtype.kind in "iu" and found.shape == (count,)
    if not is_whole or len(np.unique(found)) < count or found.min() < 0 or found.max() >= size:
        text = f"{retrieval.name}: slots must return {count} different whole numbers below {size}, got {found!r}."
        raise InvalidValueError(f"retrieval={text}", option="retrieval", found=found)
    return found.astype(np.int64)
