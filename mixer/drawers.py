"""What a stream draws next: the interface behind every stream, and its usual form, a shuffled order."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mixer.order import Order, OrderBlock
from mixer.plan import Plan
from mixer.streams import Stream

Int64Array = NDArray[np.int64]

# Up to so many streams each looks up its own positions; of more, all are mapped in one vectorised call.
_FEW_STREAMS = 32


class Drawer(Protocol):
    """Draws the next samples of a stream, as references into its data set.

    Drawing is split in two, so that every rank knows what all of them draw but looks up only its own share: `draw`
    reserves positions, `references` says what stands there.
    """

    @property
    def available(self) -> int | None:
        """Number of samples that can be drawn now; `None` means without end."""

    def draw(self, count: int) -> int:
        """Reserves the next positions.

        Args:
            count: How many, at most `available`.

        Returns:
            The first of them; the others follow it.
        """

    def references(self, positions: range) -> Int64Array:
        """Looks positions up.

        Args:
            positions: Reserved positions; a rank's own are evenly spaced.

        Returns:
            int64 `[len(positions)]`: indices into the stream's data set.
        """

    def state_dict(self) -> dict[str, Any]:
        """Gives the state as plain data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state."""


class OrderedDrawer:
    """Draws a stream in its order, epoch after epoch; its whole state is one integer.

    Args:
        stream: The stream.
        run_seed: The run's seed, for a stream without one of its own.
    """

    def __init__(self, stream: Stream, run_seed: int):
        self.length, self.key, self.shuffle = stream.num_samples, stream.order_key(run_seed), stream.shuffle
        self._block = OrderBlock(Order(self.length, self.key, self.shuffle))
        self._end = stream.max_samples
        self._position = 0

    @property
    def available(self) -> int | None:
        """Number of samples left until `max_epochs`, or `None`."""
        return None if self._end is None else self._end - self._position

    def draw(self, count: int) -> int:
        """Reserves the next positions; see `Drawer.draw`."""
        start = self._position
        self._position += count
        return start

    def references(self, positions: range) -> Int64Array:
        """Looks positions up in the order; see `Drawer.references`."""
        return self._block.read(positions)

    def state_dict(self) -> dict[str, Any]:
        """Gives the position, and what it belongs to; see `Drawer.state_dict`."""
        return {"position": self._position, "length": self.length, "key": self.key, "shuffle": self.shuffle}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the position.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If the data set, the seed or the shuffling is another one: positions would mean other samples.
        """
        own = self.state_dict()
        for field in ("length", "key", "shuffle"):
            if state[field] != own[field]:
                raise ValueError(f"{field} was {state[field]} when the run was saved and is {own[field]} now")
        self._position = int(state["position"])


class DrawerLookup:
    """Looks up what a rank has to fetch.

    Args:
        drawers: The drawers of all streams, in order.
    """

    def __init__(self, drawers: Sequence[Drawer]):
        self._drawers = drawers
        ordered = [drawer for drawer in drawers if isinstance(drawer, OrderedDrawer)]
        self._order: Order | None = None
        if len(drawers) > _FEW_STREAMS and len(ordered) == len(drawers):
            self._order = Order([d.length for d in ordered], [d.key for d in ordered], [d.shuffle for d in ordered])

    def share(self, plan: Plan, rank: int, world_size: int) -> list[tuple[int, Int64Array]]:
        """Gives a rank's samples of a plan.

        Args:
            plan: The plan.
            rank: The rank.
            world_size: Number of ranks.

        Returns:
            For each stream that the rank has samples of, in order: its id, and int64 `[count]` indices into its
            data set.
        """
        if self._order is None:
            own = plan.rank_ranges(rank, world_size)
            return [(stream_id, self._drawers[stream_id].references(positions)) for stream_id, positions in own]
        stream_ids, positions = plan.rank_positions(rank, world_size)
        indices = self._order.map_positions(stream_ids, positions)
        present, starts = np.unique(stream_ids, return_index=True)
        return list(zip(present.tolist(), np.split(indices, starts[1:]), strict=True))
