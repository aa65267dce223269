"""The memory of a continual run, with its streams and policy, and methods."""

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mixer import MixingTrainer, Stream
from mixer.policies import Policy
from mixer.trainer.method import Method, as_methods
from mixer.utils.files import folder_name
from replay import DER, ReplayBuffer, ReplayRatio, extract_features
from tasks.task import Task

MEMORY = "memory"
_METHODS = "methods"

Methods = Sequence[Method] | Callable[[], Sequence[Method]]


class Rehearsal:
    """The memory of a continual run and how it takes part, and methods, with a memory or without one.

    Args:
        memory: The buffer, or `None`.
        second_draw: Name of a stream that draws from it once more, or `None`.
        mixing: How much is replayed; `None` for as many samples on top as there are new ones, in each draw.
        methods: What else takes part, or gives it anew for each task.
        task_names: Names of the tasks, whose streams they are too.

    Raises:
        ValueError: If there is no memory but something for it, or two streams would have the same name.
        TypeError: If the mixing is no policy, or methods are none.
    """

    def __init__(
        self,
        memory: ReplayBuffer | None,
        second_draw: str | None,
        mixing: Policy | None,
        methods: Methods | None,
        task_names: Sequence[str],
    ):
        if memory is None and (mixing is not None or second_draw is not None):
            raise ValueError(
                "mixing and second_draw say how a memory is replayed, but memory is None: give a ReplayBuffer, or "
                "leave them out."
            )
        if mixing is not None and not isinstance(mixing, Policy):
            raise TypeError(
                "mixing must be a policy that fits every task, whose streams have other names, such as "
                f"ReplayRatio(0.5), got a {type(mixing).__name__}."
            )
        if MEMORY in task_names:
            raise ValueError(f"A task is called {MEMORY!r}, which is the name of the memory's stream; rename it.")
        if second_draw in (MEMORY, *task_names):
            raise ValueError(f"second_draw must be a name that no other stream has, got {second_draw!r}.")
        self.memory, self._second_draw, self._mixing = memory, second_draw, mixing
        self._methods, self._task_names = methods, tuple(task_names)
        first, second = self.new_methods(), self.new_methods()
        # What is the same for every task goes on from one to the next with what it remembers.
        self._lasting = [method for method in first if any(method is other for other in second)]

    def refuse_earlier_tasks(self) -> None:
        """Raises a `ValueError` if a new run's memory already holds samples of its own tasks."""
        names = self.memory.sources.names if self.memory is not None and self.memory.num_offered else ()
        if known := [name for name in self._task_names if name in names]:
            raise ValueError(
                f"memory holds samples of the tasks {known} before the first of them is trained on, as after another "
                "run. Give each run a new ReplayBuffer."
            )

    @property
    def keeps_logits(self) -> bool:
        """Whether a method stores logits with the samples."""
        return any(isinstance(method, DER) for method in self.new_methods())

    def new_streams(self) -> list[Stream]:
        """Returns the streams of the memory for a task's trainer."""
        if self.memory is None:
            return []
        again = [] if self._second_draw is None else [Stream(self._second_draw, self.memory.second_draw())]
        return [Stream(MEMORY, self.memory), *again]

    def new_mixing(self) -> Policy | None:
        """Returns the policy of a task's trainer; `None` without a memory."""
        if self._mixing is not None or self.memory is None:
            return copy.deepcopy(self._mixing)
        return ReplayRatio(1 / 2 if self._second_draw is None else 2 / 3, additional=True)

    def new_methods(self) -> list[Method]:
        """Returns the methods for a task's trainer."""
        return list(as_methods(self._methods() if callable(self._methods) else self._methods or ()))

    def remember(self, trainer: MixingTrainer, task: Task) -> None:
        """Offers a whole task to a memory that is filled at the end of tasks, with features if it needs them."""
        if self.memory is not None and not self.memory.is_online:
            needs = self.memory.selection.needs
            features = extract_features(trainer, task.train) if "features" in needs else None
            self.memory.remember(task.name, task.train, features=features)
            trainer.note_memories()
            trainer.ledger.finish()

    def save(self, folder: Path) -> None:
        """Writes the memory, and the state of methods that last for all tasks."""
        if self.memory is not None:
            self.memory.save(folder / MEMORY)
        for method in self._lasting:
            method.save(folder / _METHODS / folder_name(method.name))

    def load(self, folder: Path, done: Iterable[Task]) -> None:
        """Reads the memory and methods; `done` are the tasks trained on before."""
        for method in self._lasting:
            method.load(folder / _METHODS / folder_name(method.name))
        if self.memory is None:
            return
        self.memory.load(folder / MEMORY)
        for task in done:  # tells the buffer where it reads
            if task.name in self.memory.sources.names:
                self.memory.remember(task.name, task.train, [])
