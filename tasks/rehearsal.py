"""What a continual run does with its memory: streams and mixing for each task, filling, saving and taking up."""

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mixer import MixingTrainer, Stream
from mixer.method import Method
from mixer.policies import Policy
from replay import DER, ReplayBuffer, ReplayRatio, extract_features
from tasks.task import Task

MEMORY = "memory"


class Rehearsal:
    """The memory of a continual run and how it takes part; without a memory it gives nothing.

    Args:
        memory: The buffer, or `None`.
        second_draw: Name of a stream that draws from it once more, or `None`.
        mixing: How much is replayed; `None` for as many samples on top as there are new ones, in each draw.
        methods: Gives what else takes part.
        task_names: Names of the tasks, whose streams they are too.

    Raises:
        ValueError: If there is no memory but something for it, or two streams would have the same name.
        TypeError: If the mixing is no policy.
    """

    def __init__(
        self,
        memory: ReplayBuffer | None,
        second_draw: str | None,
        mixing: Policy | None,
        methods: Callable[[], Sequence[Method]] | None,
        task_names: Sequence[str],
    ):
        if memory is None and (mixing is not None or methods is not None or second_draw is not None):
            raise ValueError(
                "mixing, methods and second_draw say what a memory is for, but memory is None: give a ReplayBuffer."
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

    def refuse_earlier_tasks(self) -> None:
        """Makes sure that a run that begins does not begin with samples of its own tasks.

        Raises:
            ValueError: If the memory holds some, as after another run.
        """
        if self.memory is None or not self.memory.num_offered:
            return
        known = [name for name in self._task_names if name in self.memory.sources.names]
        if known:
            raise ValueError(
                f"memory holds samples of the tasks {known} before the first of them is trained on, as after another "
                "run. Give each run a new ReplayBuffer."
            )

    @property
    def keeps_logits(self) -> bool:
        """Whether the memory keeps what the model said of samples."""
        return any(isinstance(method, DER) for method in self.new_methods())

    def new_streams(self) -> list[Stream]:
        """Gives the streams of the memory, for a task's trainer.

        Returns:
            The streams.
        """
        if self.memory is None:
            return []
        again = [] if self._second_draw is None else [Stream(self._second_draw, self.memory.second_draw())]
        return [Stream(MEMORY, self.memory), *again]

    def new_mixing(self) -> Policy | None:
        """Gives the policy of a task's trainer.

        Returns:
            The policy; `None` without a memory.
        """
        if self._mixing is not None or self.memory is None:
            return copy.deepcopy(self._mixing)
        return ReplayRatio(1 / 2 if self._second_draw is None else 2 / 3, additional=True)

    def new_methods(self) -> list[Method]:
        """Gives what else takes part in a task's updates.

        Returns:
            The methods.
        """
        return [] if self._methods is None else list(self._methods())

    def remember(self, trainer: MixingTrainer, task: Task) -> None:
        """Offers a whole task to a memory that is filled at a task's end.

        Args:
            trainer: The task's trainer, whose model gives features if the selection needs them.
            task: The task.
        """
        if self.memory is not None and not self.memory.is_online:
            needs = self.memory.selection.needs
            features = extract_features(trainer, task.train) if "features" in needs else None
            self.memory.remember(task.name, task.train, features=features)
            trainer.note_memories()
            trainer.ledger.finish()

    def save(self, folder: Path) -> None:
        """Writes the memory.

        Args:
            folder: Where a run writes what there is after a task.
        """
        if self.memory is not None:
            self.memory.save(folder / MEMORY)

    def load(self, folder: Path, done: Iterable[Task]) -> None:
        """Reads the memory.

        Args:
            folder: Where it was written.
            done: The tasks that were trained on before that.
        """
        if self.memory is None:
            return
        self.memory.load(folder / MEMORY)
        for task in done:  # tells the buffer where it reads
            if task.name in self.memory.sources.names:
                self.memory.remember(task.name, task.train, [])
