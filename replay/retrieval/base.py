"""What every retrieval is: a rule which entries of a buffer are replayed next."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mixer.utils.arrays import Int64Array


class Retrieval(ABC):
    """A rule which entries are replayed.

    A buffer's positions are counted from 0 as it is drawn from; a draw takes the next `count` of them, at most as many
    as there are entries, and gives no entry twice. It is the same on every rank.
    """

    @property
    def name(self) -> str:
        """What the retrieval is called in checkpoints."""
        return type(self).__name__

    @abstractmethod
    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer.

        Args:
            capacity: Number of slots.
            key: Random key, a signed 64-bit integer.
        """

    @abstractmethod
    def slots(self, start: int, count: int, size: int) -> Int64Array:
        """Says which slots a draw gives; changes nothing, so that coming draws can be predicted.

        Args:
            start: Position of the draw: that of the next one, or a later one if all stayed as it is.
            count: Number of entries, at most `size`.
            size: Number of entries in the buffer.

        Returns:
            int64 `[count]`: different slots.
        """

    def drawn(self, start: int, slots: Int64Array) -> None:  # noqa: B027  # most rules need not know
        """Is told that a draw was made.

        Args:
            start: Its position.
            slots: int64 `[count]`: what `slots` gave for it.
        """

    def placed(self, slots: Int64Array) -> None:  # noqa: B027  # most rules need not know
        """Is told that new entries stand in these slots, which are new (`size` and on) or held others before.

        Args:
            slots: int64 `[count]`: different slots, in the order in which they were taken.
        """

    def removed(self, slot: int, last: int) -> None:  # noqa: B027  # most rules need not know
        """Is told that an entry was forgotten: what stood in slot `last` stands in `slot` now.

        Args:
            slot: The slot.
            last: The last taken slot, which is free now.
        """

    def state_dict(self) -> dict[str, Any]:
        """Gives everything that is remembered: JSON-safe values and numpy arrays, by name, not nested."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state, after `start`.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If it is of a retrieval that remembers other things.
        """
        own = sorted(self.state_dict())
        if sorted(state) != own:
            raise ValueError(f"{self.name} remembers {own}, but the saved state has {sorted(state)}.")
