"""Interface of a cursor: the next samples of a stream."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from mixer.utils.arrays import Int64Array


class Cursor(Protocol):
    """Draws the next samples of a stream, as indices into its dataset.

    Drawing has two parts, so that every rank knows all ranks' draws but looks up only its own share: `advance` reserves
    positions, `references` maps them to indices.
    """

    @property
    def available(self) -> int | None:
        """Samples that can be drawn now; `None` means unlimited."""

    def advance(self, count: int) -> int:
        """Reserves the next `count` positions, at most `available`, and returns the first."""

    def references(self, positions: range | Int64Array) -> Int64Array:
        """Maps positions to dataset indices.

        Args:
            positions: Positions in ascending order, reserved or soon to be.

        Returns:
            int64 `[len(positions)]`: indices into the stream's dataset.
        """

    def lookahead_copy(self) -> "Cursor":
        """Returns a copy for lookahead: drawing from it does not move this one."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data."""

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Restores a saved state; raises a `ValueError` on a mismatch, or resumes as closely as possible."""


@runtime_checkable
class GrowingDataset(Protocol):
    """Dataset that grows and forgets during training, such as a replay buffer.

    It decides itself which samples to draw; its cursor's `references` are numbers by which its reader looks them up.
    """

    def new_cursor(self, key: int) -> Cursor:
        """Returns its cursor; `key` is the stream's random key."""

    def reader(self, datasets: Mapping[str, Any]) -> Any:
        """Returns an object to read its samples from, by `__getitem__`.

        Args:
            datasets: Datasets of the run's other streams, by name, as the loader reads them.
        """

    def follow(self, name: str, streams: Sequence[Any], planner: Callable[[], Any]) -> Callable[[Any], None]:
        """Returns a function that fills it in your own training loop.

        Args:
            name: Name of its stream.
            streams: Streams, in order.
            planner: Returns the planner.

        Returns:
            Function to call with the plan of each batch after training on it.

        Raises:
            ValueError: If only a trainer can fill it.
        """

    def as_method(self, name: str, streams: Sequence[Any]) -> Any:
        """Returns the `mixer.trainer.method.Method` that fills it, in a run of some streams; `name` is its stream's."""
