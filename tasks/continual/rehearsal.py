"""How the past takes part in a continual run: memories, the replay policy, and methods."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from mixer import MixingTrainer, Stream
from mixer.measurements import Needs
from mixer.policies import Policy
from mixer.policies.registry import as_policy
from mixer.trainer.method import Method, as_methods
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.files import folder_name, read_json, write_json
from mixer.utils.recorded_arguments import as_data
from replay import DER, ReplayBuffer, ReplayRatio
from replay.policies import Past, ReplayPolicy
from replay.second_draw import SecondDraw
from tasks.continual.memories import MEMORY, OneMemory, TaskMemories
from tasks.methods import PseudoSamples, TaskContext, TaskMethod
from tasks.task import Task, TaskSequence

_METHODS, _POLICY_FILE = "methods", "policy.json"
_FEW = 0.95  # of the epochs, which end with whole steps
logger = logging.get_logger(__name__)

Methods = Sequence[Method] | Callable[[], Sequence[Method]]
Mixing = Policy | str | Sequence[float] | Callable[..., Any]  # as the trainer's, but for weights by name


class Rehearsal:
    """The memories of a continual run, the policy that replays them, and methods, with a memory or without one.

    Args:
        memory: The buffer, or `None`.
        second_draw: Name of a stream that draws from it once more, or `None`.
        mixing: How much is replayed, as the trainer takes it; `None` for as many samples on top as there are new ones,
            in each draw.
        methods: What else takes part, or gives it anew for each task.
        sequence: The tasks.

    Raises:
        ValueError: If there is no memory but something for it, or two streams would have the same name.
        TypeError: If the mixing fits no task but one, or methods are none.
    """

    def __init__(
        self,
        memory: ReplayBuffer | None,
        second_draw: str | None,
        mixing: Mixing | None,
        methods: Methods | None,
        sequence: TaskSequence,
    ):
        _check(memory, second_draw, mixing)
        self._mixing = None if mixing is None else as_policy(mixing)
        self._memory, self._second_draw = memory, second_draw
        self._methods, self._sequence = methods, sequence
        self.needs: Needs = () if self._mixing is None else self._mixing.needs
        self._memories = self._new_memories()
        self._replay: ReplayPolicy | None = None  # of the present task
        self._present_methods: list[Method] = []
        self._lasting: dict[str, Any] = {}  # what replay policies of earlier tasks left
        self._num_drawn: list[int] = []  # of the present buffers, before the task
        first, second = self.new_methods(), self.new_methods()
        # What is the same for every task goes on from one to the next with what it remembers.
        self._lasting_methods = [method for method in first if any(method is other for other in second)]
        _check_methods(first, self._lasting_methods, self._memories, sequence)

    def _new_memories(self) -> OneMemory | TaskMemories | None:
        if self._memory is None:
            return None
        replay, names = _replay_policy(self._mixing), self._sequence.names
        if replay is None or not replay.needs_memory_per_task:
            return OneMemory(self._memory, self._second_draw, names)
        if self._second_draw is not None:
            raise InvalidValueError.about(
                "second_draw", f"needs one memory for all tasks, and {type(replay).__name__} has one for each."
            )
        return TaskMemories(self._memory, names)

    def refuse_earlier_tasks(self) -> None:
        """Raises a `ValueError` if a new run's memory already holds samples of its own tasks."""
        memory = self._memory
        names = memory.sources.names if memory is not None and memory.num_offered else ()
        if known := [name for name in self._sequence.names if name in names]:
            raise InvalidValueError.about("memory", f"must be new, but holds samples of {known} from an earlier run.")

    @property
    def has_one_memory(self) -> bool:
        """Whether there is one memory for all tasks."""
        return isinstance(self._memories, OneMemory)

    @property
    def buffers(self) -> list[ReplayBuffer]:
        """The memories."""
        return [] if self._memories is None else self._memories.buffers

    @property
    def description(self) -> dict[str, Any]:
        """What a resumed run must have as the run before: names of the policy and of the methods."""
        mixing = None if self._mixing is None else type(self._mixing).__name__
        return {"mixing": mixing, "methods": [method.name for method in self.new_methods()]}

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of the policy and of the methods, as plain data."""
        of_methods = {f"method {method.name}": as_data(method) for method in self.new_methods()}
        return {"mixing": as_data(self._mixing), **of_methods}

    @property
    def keeps_logits(self) -> bool:
        """Whether a method stores logits with the samples."""
        return any(isinstance(method, DER) for method in self.new_methods())

    @property
    def adds_parameters(self) -> bool:
        """Whether a method adds parameters when a task begins."""
        return any(isinstance(method, TaskMethod) and method.adds_parameters for method in self.new_methods())

    def new_streams(self) -> list[Stream]:
        """Returns the streams of the memories for a task's trainer."""
        return [] if self._memories is None else self._memories.new_streams()

    def trainer_options(self, number: int, eval_dataset: Any) -> dict[str, Any]:
        """Returns the policy, the methods and the evaluation sets of a task's trainer.

        Args:
            number: Number of the task.
            eval_dataset: The user's; sets of earlier tasks get the names of their memories.
        """
        self._present_methods = self.new_methods()
        if isinstance(eval_dataset, Mapping) and self._memories is not None:
            streams = {task: stream for stream, task in self._memories.sources.items()}
            eval_dataset = {streams.get(name, name): dataset for name, dataset in eval_dataset.items()}
        mixing = self._new_mixing(number)
        return {"mixing": mixing, "methods": self._present_methods, "eval_dataset": eval_dataset}

    def _new_mixing(self, number: int) -> Policy | None:
        """Returns the policy, which goes on from earlier tasks; `None` without a memory."""
        if self._memories is None:
            return None
        on_top = ReplayRatio(1 / 2 if self._second_draw is None else 2 / 3, additional=True)
        mixing = on_top if self._mixing is None else copy.deepcopy(self._mixing)
        self._replay = _replay_policy(mixing)
        if self._replay is not None:
            sizes = {task.name: len(task.train) for task in self._sequence.tasks[:number]}
            self._replay.past = Past(sizes, self._memories.sources, self._lasting)
        self._num_drawn = [buffer.num_drawn for buffer in self._memories.buffers]
        return mixing

    def new_methods(self) -> list[Method]:
        """Returns the methods as a task's trainer gets them."""
        return list(as_methods(self._methods() if callable(self._methods) else self._methods or ()))

    # ---- The ends of a task ----

    def begin_task(self, trainer: MixingTrainer, number: int) -> None:
        """Tells the methods of a trainer which task begins."""
        task, model = self._context(number), trainer.auxiliary_passes.model
        for method in self._task_methods():
            method.begin_task(task, model)

    def end_task(self, trainer: MixingTrainer, number: int) -> None:
        """Tells the methods that a task ended, and lets the memories take it in."""
        task, model = self._context(number), trainer.auxiliary_passes.model
        for method in self._task_methods():
            method.end_task(task, model)
        self._warn_of_shares(trainer, number)
        if self._replay is not None:
            self._lasting = self._replay.lasting_state()
        writes_samples = any(isinstance(method, PseudoSamples) for method in self._present_methods)
        if self._memories is not None and not writes_samples:
            self._memories.take_in(trainer, self._sequence[number])

    def _task_methods(self) -> list[TaskMethod]:
        return [method for method in self._present_methods if isinstance(method, TaskMethod)]

    def _context(self, number: int) -> TaskContext:
        task, sequence = self._sequence[number], self._sequence
        labelled = any(known.classes is not None for known in sequence.tasks[: number + 1])
        seen = sequence.classes_seen(number) if labelled else ()
        earlier = tuple(known.classes for known in sequence.tasks[:number] if known.classes is not None)
        what = (task.name, task.train, task.classes, seen, earlier, sequence.scenario)
        return TaskContext(number, len(sequence), *what)

    def _warn_of_shares(self, trainer: MixingTrainer, number: int) -> None:
        """Warns where nothing was replayed, or so much that epochs did not cover the task's own samples."""
        buffers = self.buffers
        drawn = [buffer.num_drawn - before for buffer, before in zip(buffers, self._num_drawn, strict=True)]
        held, seen = sum(map(len, buffers)), trainer.mixing.seen
        again = [int(seen[k]) for k, stream in enumerate(trainer.streams) if isinstance(stream.dataset, SecondDraw)]
        length, replayed = max(len(self._sequence[number].train), 1), sum(drawn) + sum(again)
        passes, epochs = seen[0] / length, float(trainer.args.num_train_epochs)
        is_on_top = getattr(self._mixing, "additional", self._mixing is None)
        if trainer.args.max_steps <= 0 and not is_on_top and passes < _FEW * epochs <= passes + replayed / length:
            logger.warning(
                "Task %r: its %d samples were trained on %.2f times on average in %g epochs, since mixing=%s gave "
                "%.0f %% of them to the memory. To cover them, replay on top of the batch size (additional=True), or "
                "train for more epochs.",
                *(self._sequence[number].name, length, passes, epochs, type(self._mixing).__name__),
                100 * replayed / (replayed + seen[0]),
            )
        if number and held and not any(drawn):
            logger.warning(
                "Task %r drew nothing from the memory, which holds %d samples: mixing=%s gave it no share. Give it "
                "one, such as ReplayRatio(0.5).",
                *(self._sequence[number].name, held, type(self._mixing).__name__),
            )

    # ---- State ----

    def save(self, folder: Path) -> None:
        """Writes the memories, what the policy goes on with, and the state of methods that last for all tasks."""
        if self._memories is not None:
            self._memories.save(folder)
            write_json(folder / _POLICY_FILE, self._lasting)
        for method in self._lasting_methods:
            method.save(folder / _METHODS / folder_name(method.name))

    def load(self, folder: Path, done: Iterable[Task]) -> None:
        """Reads all that `save` wrote; `done` are the tasks trained on before."""
        for method in self._lasting_methods:
            method.load(folder / _METHODS / folder_name(method.name))
        if self._memories is not None:
            self._memories.load(folder, done)
            self._lasting = read_json(folder / _POLICY_FILE)


def _check_methods(methods: Sequence[Method], lasting: Sequence[Method], memories: Any, sequence: TaskSequence) -> None:
    for method in methods:
        _check_task_method(method, method in lasting, sequence)
        if isinstance(memories, TaskMemories) and getattr(method, "memory", None) == MEMORY:
            raise InvalidValueError.about(
                "methods", f"need one memory for all tasks: {method.name} replays {MEMORY!r}. Mix by ReplayRatio, say."
            )


def _check_task_method(method: Method, is_lasting: bool, sequence: TaskSequence) -> None:
    if not isinstance(method, TaskMethod):
        if hasattr(method, "begin_task") or hasattr(method, "end_task"):
            text = f"{method.name} goes by tasks: derive it from tasks.methods.TaskMethod."
            raise InvalidTypeError.about("methods", text, found=method)
    elif method.lasts_for_all_tasks and not is_lasting:
        raise InvalidValueError.about("methods", f"must be a list with {method.name}, which lasts, not a function.")
    elif method.needs_all_logits and sequence.scenario == "task":
        raise InvalidValueError.about(
            "scenario", f"must not be 'task' with {method.name}, which chooses among the classes of all tasks."
        )
    elif method.needs_classes and (without := [task.name for task in sequence if task.classes is None]):
        raise InvalidValueError.about(
            "methods", f"{method.name} goes by classes, but the samples of {without} have no column 'label'."
        )


def _check(memory: ReplayBuffer | None, second_draw: str | None, mixing: Any) -> None:
    if memory is None and (mixing is not None or second_draw is not None):
        raise InvalidValueError.about("memory", "must be a ReplayBuffer with mixing or second_draw, got None.")
    if isinstance(mixing, Mapping):
        raise InvalidTypeError.about("mixing", "must fit every task, such as ReplayRatio(0.5), not weights by name.")


def _replay_policy(mixing: Policy | None) -> ReplayPolicy | None:
    """Finds the replay policy, which other policies may wrap."""
    while mixing is not None and not isinstance(mixing, ReplayPolicy):
        mixing = getattr(mixing, "policy", None)
    return mixing
