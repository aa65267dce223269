"""What a method is: something that takes part in a run's steps beside the loss of its samples."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixer.distributed.collectives import RankSync
from mixer.loading.step import MicroBatch, StepBatch
from mixer.mixture.cursor import GrowingDataset
from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.trainer.side_runs import SideRuns
from mixer.utils.arrays import FloatArray, Int64Array


@dataclass(frozen=True)
class RunContext:
    """What a method may know of the run that it takes part in.

    Args:
        streams: The streams, in order.
        rank: This rank.
        world_size: Number of ranks.
        is_writer: Whether this process writes files that the others of its machine read.
        device: Where the model is.
        agreement: What the ranks agree by.
        planner: Gives what the streams draw.
        runs: Loads samples, and runs the model on them, beside the training.
        skipped: The streams whose samples are left out where they cannot be loaded.
    """

    streams: Sequence[Stream]
    rank: int
    world_size: int
    is_writer: bool
    device: torch.device
    rank_sync: RankSync
    planner: Callable[[], Planner]
    runs: SideRuns
    skipped: frozenset[int] = frozenset()

    @property
    def seed(self) -> int:
        """The seed of the data, as the training arguments say it when the run begins."""
        return self.planner().seed

    def stream_id(self, name: str, asked_by: str) -> int:
        """Finds a stream.

        Args:
            name: Its name.
            asked_by: Who asks, for the error.

        Returns:
            Its id.

        Raises:
            ValueError: If there is none of that name.
        """
        names = [stream.name for stream in self.streams]
        if name not in names:
            raise ValueError(f"{asked_by}: there is no stream {name!r}; the streams are {names}.")
        return names.index(name)


@dataclass(frozen=True)
class ForwardResult:
    """A micro-batch whose forward is done.

    Args:
        plan: The step's plan.
        micro: The micro-batch, with positions.
        output: What the model gave, with its graph until the backward is done.
        items: int64 `[num_rows]`: terms of the loss in each row.
        row_losses: `[num_rows]`, on the device: the sum of each row's loss terms, without a graph; `None` before the
            backward, or where rows cannot be told apart.
    """

    plan: Plan
    micro: MicroBatch
    output: Any
    items: Tensor
    row_losses: Tensor | None = None


class Method:
    """Takes part in the steps of a run; each of these does nothing unless a subclass says otherwise.

    Everything that it does has to come out the same on every rank, but for what it is told of a rank's own samples.

    A subclass sets `adds_term` if it gives a `term`, `one_stream_each` if micro-batches have to be of one stream each,
    `needs_samples` if steps have to keep their samples, and `takes_gradients` if each rank has to have whole
    gradients of its own, as with DDP.
    """

    adds_term: bool = False
    one_stream_each: bool = False
    needs_samples: bool = False
    takes_gradients: bool = False
    attached_to: RunContext | None = None  # set by the trainer

    @property
    def name(self) -> str:
        """What it is called in logs (`term/NAME`) and in checkpoints."""
        return type(self).__name__

    def attach(self, run: RunContext) -> None:
        """Is called when the trainer is made, and has to refuse what it cannot work with.

        What it noted in an earlier run has to be forgotten: it goes on with this one alone.

        Args:
            run: The run.

        Raises:
            ValueError: If the run is none that it can take part in.
        """

    def prepare(self, model: nn.Module) -> None:
        """Is called when the model is ready to be trained.

        Args:
            model: The model as it is trained.

        Raises:
            ValueError: If the method cannot work with it.
        """

    def retrieve(self, batch: StepBatch) -> bool:
        """Is called before a step is trained, once all ranks have confirmed it.

        Args:
            batch: The step.

        Returns:
            Whether it has to be loaded anew, since other samples are to be taken; the same on every rank.
        """
        return False

    def factors(self, plan: Plan, items: Int64Array) -> FloatArray | None:
        """Says what the losses of the streams are multiplied by in a step.

        Args:
            plan: Its plan.
            items: int64 `[num_streams]`: its items.

        Returns:
            `[num_streams]`, or `None` for 1 throughout; only for methods with `one_stream_each`.
        """
        return None

    def goes_first(self, stream_id: int) -> bool:
        """Whether a stream's micro-batches come before those of the others; only with `one_stream_each`."""
        return False

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Is called before the micro-batches of a step run, each time that they do.

        Args:
            model: The model as it is trained.
            batch: The step.
        """

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Gives what this micro-batch adds to the loss, after its forward.

        Args:
            trained: The micro-batch and what the model gave.

        Returns:
            A scalar with a graph, such that the mean over the ranks of the sum over their micro-batches is the whole
            term; or `None`.
        """
        return None

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, is_last_first: bool) -> None:
        """Is called after the backward of a micro-batch.

        Args:
            model: The model as it is trained.
            trained: The micro-batch.
            is_last_first: Whether it was the last of those that go first.
        """

    def end_backward(self, model: nn.Module) -> None:
        """Is called once a step's gradient is complete and averaged, before it is clipped.

        Args:
            model: The model as it is trained.
        """

    def close(self, batch: StepBatch) -> None:
        """Is called after the optimizer step, before the next step is planned.

        An error on one rank is told to all afterwards. Where ranks talk to each other in here, what may fail before
        they do goes through `run.agreement.together`.

        Args:
            batch: The step that was trained.
        """

    def contents(self) -> dict[str, int]:
        """Counts what it remembers, by where that came from, for the ledger; empty for what remembers nothing."""
        return {}

    def classes(self) -> dict[int, int]:
        """Counts what it remembers by class, for the ledger; empty where classes are not known."""
        return {}

    def log_entries(self) -> dict[str, float]:
        """Gives what a log entry says of it."""
        return {}

    def log_state(self) -> dict[str, Any]:
        """Gives what the next log entry will say of it, as plain data, so that a run that goes on says the same."""
        return {}

    def load_log_state(self, state: Mapping[str, Any]) -> None:
        """Takes up what the next log entry will say of it.

        Args:
            state: What `log_state` gave; empty where a run begins.
        """

    def settings(self) -> str | None:
        """Says what it does to steps, for checkpoints: a run goes on with the same, unless told otherwise.

        Called once it is attached, and says the same in every process.

        Returns:
            How it was set, as a user would write it; `None` for what may come, change or go between two runs.
        """
        return None

    def save(self, folder: Path) -> None:
        """Writes its state; called on the ranks that write checkpoints.

        Args:
            folder: A folder of its own in the checkpoint, to be made if there is something to write.
        """

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Takes up a saved state; called on all ranks before a run goes on.

        Args:
            folder: What `save` was given; not there if nothing was written.
            allow_inexact: Whether to go on as near as can be where the state does not fit.

        Raises:
            ValueError: If it does not fit.
        """


def as_methods(methods: object) -> tuple[Method, ...]:
    """Checks what a user gives as `methods`.

    Args:
        methods: A list or tuple of methods.

    Returns:
        The methods.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(methods, (list, tuple)):
        raise TypeError(f"methods must be a list of methods, got {_described(methods)}")
    for place, method in enumerate(methods):
        if not isinstance(method, Method):
            raise TypeError(f"methods[{place}] must be a method, got {_described(method)}")
    return tuple(methods)


def _described(given: object) -> str:
    """Says what was given, and what to give instead."""
    if isinstance(given, Method):
        return f"a {type(given).__name__} by itself. Give a list: methods=[{type(given).__name__}(...)]."
    if inspect.isclass(given) and issubclass(given, Method):
        return f"the class {given.__name__}. Give an instance: methods=[{given.__name__}(...)]."
    if isinstance(given, GrowingDataset):
        return f"a {type(given).__name__}. It is a stream: train_dataset={{..., 'memory': buffer}}."
    what = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
    return f"{what}. Methods are instances, such as DER('memory'); what a buffer keeps and replays is an option of it."
