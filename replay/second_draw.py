"""A second stream that draws from a replay buffer, independently of the first."""

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.trainer.method import Method, RunContext
from mixer.utils.errors import InvalidValueError
from replay.memory.drawing import BufferCursor
from replay.memory.memory import Memory
from replay.retrieval import Retrieval, Uniform


class SecondDraw:
    """Draws entries of a buffer uniformly, with its own random key and position, and adds nothing to the buffer.

    `train_dataset={"new": new, "memory": buffer, "again": buffer.second_draw()}` gives the same memory two independent
    shares of the mixture. The buffer must be a stream of the same run.
    """

    def __init__(self, buffer: Memory):
        self.buffer, self.num_drawn = buffer, 0
        self.retrieval: Retrieval = Uniform()
        self.key: int | None = None

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"SecondDraw({self.buffer!r})"

    def new_cursor(self, key: int) -> BufferCursor:
        """See `mixer.mixture.stream.GrowingDataset`."""
        if self.key is None or (self.key != key and not self.num_drawn):
            self.begin(key)
        return _SecondCursor(self)

    def begin(self, key: int, num_drawn: int = 0) -> None:
        """Starts with a random key, or continues after `num_drawn` samples."""
        self.key, self.num_drawn = key, num_drawn
        self.retrieval.start(max(len(self), 1), key)

    def reader(self, datasets: Mapping[str, Any]) -> Any:
        """See `mixer.mixture.stream.GrowingDataset`."""
        return self.buffer.reader(datasets)

    def follow(
        self, name: str, streams: Sequence[Stream], planner: Callable[[], Planner]
    ) -> Callable[[StepPlan], None]:
        """Raises a `ValueError` if the buffer is no stream of the run; see `mixer.mixture.stream.GrowingDataset`."""
        if not any(stream.dataset is self.buffer for stream in streams):
            text = "is a second draw of a buffer that is no stream of the run. Add the buffer: {..., 'memory': buffer}."
            raise InvalidValueError(f"Stream {name!r} {text}", option="second_draw", stream=name)
        return lambda _plan: None

    def as_method(self, name: str, streams: Sequence[Stream]) -> Method:
        """Returns a method that checks for the buffer; see `mixer.mixture.stream.GrowingDataset`."""
        return _Check(self, name)


class _SecondCursor(BufferCursor):
    """A cursor with the retrieval and position of a second draw."""

    def __init__(self, draw: SecondDraw):
        super().__init__(draw.buffer, draw)
        self._draw = draw

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "key": self._draw.key}

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        if state.get("key") is not None:
            self._draw.begin(index(state["key"]), index(state["position"]))
        super().load_state_dict(state, allow_inexact)


class _Check(Method):
    """Refuses a run with a second draw but without its buffer."""

    name = ""  # in place of the property

    def __init__(self, draw: SecondDraw, name: str):
        self._draw, self.name = draw, name

    def attach(self, run: RunContext) -> None:
        self._draw.follow(self.name, run.streams, run.planner)
