"""A second stream that draws a replay buffer for itself, independently of the first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.trainer.method import Method, RunContext
from mixer.utils.arrays import Int64Array
from replay.memory.drawing import BufferCursor
from replay.retrieval import Retrieval, Uniform


class Drawn(Protocol):
    """What is drawn a second time."""

    def __len__(self) -> int: ...

    num_offered: int

    def addresses(self, slots: Int64Array) -> Int64Array:
        """Says where the samples in some slots are read."""

    def numbers(self, slots: Int64Array) -> Int64Array:
        """Says which entries stand in some slots."""

    def reader(self, datasets: Mapping[str, Any]) -> Any:
        """Gives what samples are read from, by address."""


class SecondDraw:
    """Draws the entries of a buffer evenly, with a random key and a position of its own, and feeds nothing.

    `train_dataset={"new": new, "memory": buffer, "again": buffer.second_draw()}` gives the same memory two parts in the
    mix that have nothing to do with each other.

    Args:
        buffer: The buffer; it has to be a stream of the same run.
    """

    def __init__(self, buffer: Drawn):
        self.buffer, self.num_drawn = buffer, 0
        self.retrieval: Retrieval = Uniform()
        self.key: int | None = None

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"SecondDraw({self.buffer!r})"

    def addresses(self, slots: Int64Array) -> Int64Array:
        """Says where the samples in some slots are read; see `reader`."""
        return self.buffer.addresses(slots)

    def numbers(self, slots: Int64Array) -> Int64Array:
        """Says which entries stand in some slots; see `Memory.numbers`."""
        return self.buffer.numbers(slots)

    @property
    def num_offered(self) -> int:
        """Number of samples that the buffer was offered so far."""
        return self.buffer.num_offered

    def new_cursor(self, key: int) -> BufferCursor:
        """Gives what draws from the buffer; see `mixer.mixture.cursor.GrowingDataset`."""
        if self.key is None or (self.key != key and not self.num_drawn):
            self.begin(key)
        return _SecondCursor(self)

    def begin(self, key: int, num_drawn: int = 0) -> None:
        """Begins, or goes on.

        Args:
            key: Random key.
            num_drawn: Number of samples that were drawn already.
        """
        self.key, self.num_drawn = key, num_drawn
        self.retrieval.start(max(len(self), 1), key)

    def reader(self, datasets: Mapping[str, Any]) -> Any:
        """Gives what samples are read from, by address; see `mixer.mixture.cursor.GrowingDataset`."""
        return self.buffer.reader(datasets)

    def follow(self, name: str, streams: Sequence[Stream], planner: Callable[[], Planner]) -> Callable[[Plan], None]:
        """Fills nothing, but refuses a mix without the buffer; see `mixer.mixture.cursor.GrowingDataset`."""
        self.check(name, streams)
        return lambda plan: None

    def check(self, name: str, streams: Sequence[Stream]) -> None:
        """Makes sure that the buffer is there.

        Args:
            name: The name of this draw's stream.
            streams: The streams of the run.

        Raises:
            ValueError: If it is not among them.
        """
        if not any(stream.dataset is self.buffer for stream in streams):
            raise ValueError(
                f"Stream {name!r} is a second draw of a buffer that is no stream of this run, so that nothing "
                "would fill or save it. Add the buffer: {..., 'memory': buffer}."
            )

    def as_method(self, name: str) -> Method:
        """Gives what makes sure of the buffer; see `mixer.mixture.cursor.GrowingDataset`."""
        return _Check(self, name)


class _SecondCursor(BufferCursor):
    """Draws, and knows by itself where a second draw is.

    Args:
        draw: The draw.
    """

    def __init__(self, draw: SecondDraw):
        super().__init__(draw)
        self._draw = draw

    def state_dict(self) -> dict[str, Any]:
        """Gives position and key; see `mixer.mixture.cursor.Cursor.state_dict`."""
        return {**super().state_dict(), "key": self._draw.key}

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Takes up position and key; see `BufferCursor.load_state_dict`."""
        if state.get("key") is not None:
            self._draw.begin(int(state["key"]), int(state["position"]))
        super().load_state_dict(state, allow_inexact)


class _Check(Method):
    """Refuses a second draw without its buffer.

    Args:
        draw: The draw.
        stream_name: The name of its stream.
    """

    def __init__(self, draw: SecondDraw, stream_name: str):
        self._draw, self._stream_name = draw, stream_name

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._stream_name

    def attach(self, run: RunContext) -> None:
        """Refuses a run without the buffer; see `Method.attach`."""
        self._draw.check(self.name, run.streams)
