"""A second stream that draws a replay buffer for itself, independently of the first."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mixer.checkpoint import read_json, write_json
from mixer.method import Method, Run
from mixer.plan import Plan
from mixer.planner import Planner
from mixer.streams import Stream
from replay.drawing import BufferDrawer
from replay.retrieval import Retrieval, Uniform

Int64Array = NDArray[np.int64]


class Drawn(Protocol):
    """What is drawn a second time."""

    def __len__(self) -> int: ...

    def addresses(self, slots: Int64Array) -> Int64Array:
        """Says where the samples in some slots are read."""

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

    def new_drawer(self, key: int) -> BufferDrawer:
        """Gives what draws from the buffer; see `mixer.drawer.GrowingDataset`."""
        if self.key is None:
            self.begin(key)
        return BufferDrawer(self)

    def begin(self, key: int, num_drawn: int = 0) -> None:
        """Begins, or goes on.

        Args:
            key: Random key.
            num_drawn: Number of samples that were drawn already.
        """
        self.key, self.num_drawn = key, num_drawn
        self.retrieval.start(max(len(self), 1), key)

    def reader(self, datasets: Mapping[str, Any]) -> Any:
        """Gives what samples are read from, by address; see `mixer.drawer.GrowingDataset`."""
        return self.buffer.reader(datasets)

    def follow(self, name: str, streams: Sequence[Stream], planner: Callable[[], Planner]) -> Callable[[Plan], None]:
        """Fills nothing, but refuses a mix without the buffer; see `mixer.drawer.GrowingDataset`."""
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
        """Gives what saves the position; see `mixer.drawer.GrowingDataset`."""
        return _Keeping(self, name)


class _Keeping(Method):
    """Saves where a second draw is.

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

    def attach(self, run: Run) -> None:
        """Refuses a run without the buffer; see `Method.attach`."""
        self._draw.check(self.name, run.streams)

    def save(self, folder: Path) -> None:
        """Writes the position; see `Method.save`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "second_draw.json", {"key": self._draw.key, "num_drawn": self._draw.num_drawn})

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Takes up the saved position; see `Method.load`."""
        path = folder / "second_draw.json"
        if allow_inexact and not path.exists():
            return
        state = read_json(path)
        self._draw.begin(int(state["key"]), int(state["num_drawn"]))
