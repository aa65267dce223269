"""The memories of a continual run: one for all tasks, or one for each."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from mixer import MixingTrainer, Stream
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import folder_name
from replay import ReplayBuffer, extract_features
from tasks.task import Task

MEMORY = "memory"


class OneMemory:
    """One buffer for all tasks, which is the stream `"memory"`.

    Args:
        buffer: The buffer.
        second_draw: Name of a stream that draws from it once more, or `None`.
        task_names: Names of the tasks.

    Raises:
        ValueError: If two streams would have the same name.
    """

    def __init__(self, buffer: ReplayBuffer, second_draw: str | None, task_names: Sequence[str]):
        if MEMORY in task_names:
            raise InvalidValueError.about(
                "sequence", f"must not have a task {MEMORY!r}, as the memory's stream is called."
            )
        if second_draw in (MEMORY, *task_names):
            raise InvalidValueError.about("second_draw", f"must be a new name of a stream, got {second_draw!r}.")
        self._buffer, self._second_draw = buffer, second_draw
        self.buffers, self.sources = [buffer], dict[str, str]()  # as of `TaskMemories`

    def new_streams(self) -> list[Stream]:
        """Returns the streams of the memory for a task's trainer."""
        again = [] if self._second_draw is None else [Stream(self._second_draw, self._buffer.second_draw())]
        return [Stream(MEMORY, self._buffer), *again]

    def take_in(self, trainer: MixingTrainer, task: Task) -> None:
        """Offers a whole task to a buffer that is filled at the end of tasks."""
        if not self._buffer.is_online:
            _remember(self._buffer, trainer, task)

    def save(self, folder: Path) -> None:
        """Writes the buffer."""
        self._buffer.save(folder / MEMORY)

    def load(self, folder: Path, done: Iterable[Task]) -> None:
        """Reads the buffer; `done` are the tasks trained on before."""
        self._buffer.load(folder / MEMORY)
        for task in done:
            _tell_source(self._buffer, task)


class TaskMemories:
    """A buffer for each finished task, with an equal part of the capacity, filled at the end of its task.

    Args:
        like: A buffer with the options and the capacity of all together.
        task_names: Names of the tasks.

    Raises:
        ValueError: If there is less than one place a task, or the buffer's options need the steps of training.
    """

    def __init__(self, like: ReplayBuffer, task_names: Sequence[str]):
        self._like, self._numbers = like, {name: number for number, name in enumerate(task_names)}
        self._capacity = like.capacity // len(task_names)
        if not self._capacity:
            raise InvalidValueError.about("memory", f"has {like.capacity} places for {len(task_names)} tasks.")
        if needed := sorted(like.selection.needs & {"loss"}):
            raise InvalidValueError.about(
                "memory", f"must select without {needed}, like 'Reservoir', got {like.selection.name}."
            )
        self._by_task: dict[str, ReplayBuffer] = {}
        self._new(0)  # what does not fit shows at once

    def _new(self, number: int) -> ReplayBuffer:
        return self._like.empty_copy(self._capacity, seed=number)

    @property
    def buffers(self) -> list[ReplayBuffer]:
        """The buffers that are streams of the next run."""
        return [*self._by_task.values()]

    @property
    def sources(self) -> dict[str, str]:
        """By name of a memory's stream: the one task that it holds."""
        return {_stream_name(name): name for name in self._by_task}

    def new_streams(self) -> list[Stream]:
        """Returns the streams of the memories for a task's trainer."""
        return [Stream(_stream_name(name), buffer) for name, buffer in self._by_task.items()]

    def take_in(self, trainer: MixingTrainer, task: Task) -> None:
        """Makes the memory of a finished task."""
        buffer = self._new(self._numbers[task.name])
        _remember(buffer, trainer, task)
        self._by_task[task.name] = buffer

    def save(self, folder: Path) -> None:
        """Writes the buffers."""
        for name, buffer in self._by_task.items():
            buffer.save(folder / MEMORY / folder_name(name))

    def load(self, folder: Path, done: Iterable[Task]) -> None:
        """Reads the buffers; `done` are the tasks trained on before."""
        self._by_task = {task.name: self._new(self._numbers[task.name]) for task in done}
        for task in done:
            self._by_task[task.name].load(folder / MEMORY / folder_name(task.name))
            _tell_source(self._by_task[task.name], task)


def _stream_name(task_name: str) -> str:
    return f"{MEMORY} of {task_name}"


def _remember(buffer: ReplayBuffer, trainer: MixingTrainer, task: Task) -> None:
    features = extract_features(trainer, task.train) if "features" in buffer.selection.needs else None
    buffer.remember(task.name, task.train, features=features)
    trainer.note_memories()
    trainer.ledger.finish()


def _tell_source(buffer: ReplayBuffer, task: Task) -> None:
    """Tells a loaded buffer where it reads."""
    if task.name in buffer.sources.names:
        buffer.remember(task.name, task.train, [])
