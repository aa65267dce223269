"""The interface of a cursor: what of a stream comes next."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from mixer.utils.arrays import Int64Array


class Cursor(Protocol):
    """Draws the next samples of a stream, as references into its data set.

    Drawing is split in two, so that every rank knows what all of them draw but looks up only its own share: `draw`
    reserves positions, `references` says what stands there.
    """

    @property
    def available(self) -> int | None:
        """Number of samples that can be drawn now; `None` means without end."""

    def advance(self, count: int) -> int:
        """Reserves the next positions.

        Args:
            count: How many, at most `available`.

        Returns:
            The first of them; the others follow it.
        """

    def references(self, positions: range | Int64Array) -> Int64Array:
        """Looks positions up.

        Args:
            positions: Reserved positions, or such that will be soon, in ascending order.

        Returns:
            int64 `[len(positions)]`: indices into the stream's data set.
        """

    def ahead(self) -> "Cursor":
        """Gives a copy to look ahead with: drawing from it does not move this one."""

    def state_dict(self) -> dict[str, Any]:
        """Gives the state as plain data."""

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Takes up a saved state; raises a `ValueError` where it does not fit, or comes as near as can be."""


@runtime_checkable
class GrowingDataset(Protocol):
    """A data set that grows and forgets while a run trains on it, such as a replay buffer.

    What it draws is its own affair; `references` of its cursor gives numbers by which its reader finds the samples.
    """

    def new_cursor(self, key: int) -> Cursor:
        """Gives what draws from it.

        Args:
            key: The stream's random key.
        """

    def reader(self, datasets: Mapping[str, Any]) -> Any:
        """Gives what its samples are read from, by `__getitem__`.

        Args:
            datasets: The data sets of the run's other streams, by name, as the loader reads them.
        """

    def follow(self, name: str, streams: Sequence[Any], planner: Callable[[], Any]) -> Callable[[Any], None]:
        """Gives what fills it in a loop of one's own.

        Args:
            name: The name of its stream.
            streams: The streams, in order.
            planner: Gives what they draw.

        Returns:
            What is called with the plan of each batch once it was trained on.

        Raises:
            ValueError: If only a trainer could fill it.
        """

    def as_method(self, name: str) -> Any:
        """Gives what fills it, a `mixer.trainer.method.Method`.

        Args:
            name: The name of its stream.
        """
