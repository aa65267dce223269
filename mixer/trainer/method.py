"""Methods: parts of a run that take part in its steps beyond the loss of the samples."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixer.distributed.collectives import RankSync
from mixer.loading.loaded_step import StepBatch
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import GrowingDataset, Stream
from mixer.run.hooks import ForwardResult, Observer, StepHook
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import wrong_type, wrong_value
from mixer.utils.recorded_arguments import KeepsArguments
from mixer.utils.text import did_you_mean


@dataclass(frozen=True)
class RunContext:
    """The run that a method takes part in.

    Args:
        streams: The streams, in order.
        rank: This rank.
        world_size: Number of ranks.
        is_writer: Whether this process writes files that the other processes on its machine read.
        device: The device of the model.
        rank_sync: Collective operations.
        planner: Returns the planner of the streams.
        passes: Load samples and run the model on them, outside of training.
        skipped: Streams whose samples are skipped if they cannot be loaded.
    """

    streams: Sequence[Stream]
    rank: int
    world_size: int
    is_writer: bool
    device: torch.device
    rank_sync: RankSync
    planner: Callable[[], Planner]
    passes: AuxiliaryPasses
    skipped: frozenset[int] = frozenset()

    @property
    def seed(self) -> int:
        """The seed of the data, from the training arguments at the start of the run."""
        return self.planner().seed

    def stream_id(self, name: str, asked_by: str) -> int:
        """Returns the id of a stream.

        Args:
            name: Its name.
            asked_by: The option or class, for the error message.

        Raises:
            ValueError: If no stream has this name.
        """
        names = [stream.name for stream in self.streams]
        if name not in names:
            hint = did_you_mean(name, names)
            raise wrong_value(asked_by, f": there is no stream {name!r}; the streams are {names}.{hint}", found=name)
        return names.index(name)

    @property
    def memories(self) -> list[int]:
        """Ids of the streams that are replay buffers."""
        return [number for number, stream in enumerate(self.streams) if stream.is_memory]

    def memory_rows(self, trained: ForwardResult) -> Tensor:
        """Returns which samples of a micro-batch are replayed ones: bool `[num_rows]`, on the device of the model."""
        return torch.from_numpy(np.isin(trained.micro.stream_ids, self.memories)).to(self.device)

    def num_memory_rows(self, trained: ForwardResult) -> int:
        """Counts the replayed samples of the step over all ranks: what a mean over them is divided by."""
        return int(trained.plan.counts[self.memories].sum())

    def mean_over_step(
        self, values: Tensor, trained: ForwardResult | None = None, num_values: int | None = None
    ) -> Tensor:
        """Turns values into their part of a mean over the step, however it is split over micro-batches and ranks.

        Args:
            values: In `Method.term`, `[num_rows, ...]`: values of the micro-batch's samples, or a scalar that is the
                same for all, such as a penalty on weights. In `Method.end_backward`, a gradient of any shape.
            trained: The micro-batch; `None` in `end_backward`, where the gradient is complete and still has the factor
                of a gradient scaler.
            num_values: What the mean is divided by, the number of values in the step over all ranks, such as
                `num_memory_rows`; `None` for its samples.

        Returns:
            A scalar to return from `term`, or the values in the unit of the gradient, to add to it.

        Raises:
            ValueError: If the first axis does not hold the samples.
        """
        if trained is None:
            return values * self.passes.loss_scale()
        num_rows = len(trained.micro.stream_ids)
        if num_values is None and values.dim() and len(values) != num_rows:
            text = f"of mean_over_step must be a scalar or one per sample of the micro-batch, {num_rows}, got shape "
            raise wrong_value(
                "values", f"{text}{list(values.shape)}. Say num_values=, the number in the step over all ranks."
            )
        total = values.sum() if values.dim() else values * num_rows
        count = trained.plan.total - self.passes.num_skipped if num_values is None else num_values
        return total * (self.world_size / max(count, 1))


class Method(KeepsArguments, StepHook):
    """A hook with a name: it may add a term to the loss, log, and save a state of its own.

    Everything it computes must be the same on every rank, except for what depends on a rank's own samples.

    It takes part in a run of one trainer at a time. A method that goes by the tasks of a continual run derives from
    `tasks.methods.TaskMethod`.

    Attributes:
        needs: What it needs of a run, some of `NEEDS`, set before `attach`; `"whole gradients"` and `"whole weights"`
            may be added there.
        log_state: State of the next log entry as plain data, saved in checkpoints so that a resumed run logs the same;
            a property with a setter where it is computed. It is set to `{}` at the start of a run.
    """

    needs: frozenset[str] = frozenset()
    log_state: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for name, value in vars(cls).items():
            _check_hook(cls, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        _check_hook(type(self), name, value)
        super().__setattr__(name, value)

    @property
    def name(self) -> str:
        """Its name in logs (`term/NAME`) and checkpoints."""
        return type(self).__name__

    def attach(self, run: RunContext) -> None:
        """Called when the trainer is made, and before each trial of a search.

        It refuses runs that it does not support, and forgets earlier runs.

        Args:
            run: The run.

        Raises:
            ValueError: If it cannot take part in the run.
        """

    def retrieve(self, batch: StepBatch) -> bool:
        """Called before a step is trained, once all ranks have confirmed it.

        Returns:
            Whether the step must be reloaded because other samples are needed; the same on every rank.
        """
        return False

    def factors(self, plan: StepPlan, items: Int64Array) -> FloatArray | None:
        """Returns factors on the streams' losses in a step.

        Args:
            plan: The step's plan.
            items: int64 `[num_streams]`: its items.

        Returns:
            `[num_streams]`, or `None` for 1 throughout; unequal ones only with the need `"one stream each"`.
        """
        return None

    def has_priority(self, stream_id: int) -> bool:
        """Whether a stream's micro-batches run before those of the others; only if it needs one stream each."""
        return False

    def end_forward(self, trained: ForwardResult) -> None:
        """Called after the forward of a micro-batch, except for padding.

        Args:
            trained: The micro-batch and the model's output.
        """

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns an addition to the loss of a micro-batch, after its forward; logged as `term/NAME`.

        Args:
            trained: The micro-batch and the model's output.

        Returns:
            A scalar with a graph, or `None`. The whole term is the mean over ranks of the sum over their micro-batches:
            `RunContext.mean_over_step` gives a micro-batch's part of it.
        """
        return None

    def close(self, batch: StepBatch) -> None:
        """Called after the optimizer step, before the next step is planned.

        An error on one rank is reported to all ranks afterwards. If ranks communicate in here, code that may fail
        before they do must run in `RankSync.run_on_all`.

        Args:
            batch: The step that was trained.
        """

    def end_training(self) -> None:
        """Called after the last step of a run that was not stopped, on all ranks; it may change the model.

        Checkpoints have been written, so that a run that resumes from one does the same again.
        """

    def memory_counts(self) -> tuple[dict[str, int], dict[int, int]]:
        """Counts remembered samples for the ledger: by origin, and by class; empty where there are none or unknown."""
        return {}, {}

    def log_entries(self) -> dict[str, float]:
        """Returns its entries for the log."""
        return {}

    def settings(self) -> str | None:
        """Describes its effect on steps, for checkpoints: a resumed run needs the same unless `allow_inexact` is set.

        Called after `attach`; the same in every process.

        Returns:
            Its settings as a user would write them; `None` if it may be added, changed or removed on resume.
        """
        return None

    def save(self, folder: Path) -> None:
        """Writes its state; called on the ranks that write checkpoints.

        Args:
            folder: A folder of its own in the checkpoint, to be made if there is something to write.
        """

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Restores a saved state; called on all ranks before a run resumes.

        Args:
            folder: The folder of `save`; missing if nothing was written.
            allow_inexact: Whether to continue as closely as possible if the state does not fit.

        Raises:
            ValueError: If it does not fit.
        """


NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "one stream each": "micro-batches contain one stream each",
        "samples": "steps keep their samples",
        "whole gradients": "each rank has whole gradients of its own, as with DDP",
        "whole weights": "it copies, changes or runs the whole model by itself, which takes DDP too",
    }
)

_HOOKS = frozenset(
    name
    for kind in (Observer, StepHook, Method)
    for name, value in vars(kind).items()
    if callable(value) and name[0] != "_"
)


# What methods of development versions declared by, and what it is in `needs`.
_FORMER_FLAGS = {
    "one_stream_each": "one stream each",
    "needs_samples": "samples",
    "takes_gradients": "whole gradients",
    "takes_weights": "whole weights",
}


def _check_hook(kind: type, name: str, value: object) -> None:
    """Refuses data under the name of a hook, which would fail when the hook is called, and what nothing reads."""
    if name in _FORMER_FLAGS and isinstance(value, bool):
        raise wrong_type(name, f"of {kind.__name__} is not read: write needs = {{{_FORMER_FLAGS[name]!r}}}.")
    if name in _HOOKS and not (callable(value) or isinstance(value, (staticmethod, classmethod))):
        text = f"of {kind.__name__} is a hook, which the trainer calls, but is set to a {type(value).__name__}. Give "
        raise wrong_type(name, f"{text}that attribute another name, such as _{name}.")


def as_methods(methods: object) -> tuple[Method, ...]:
    """Checks the option `methods`.

    Raises:
        TypeError: If it is no list or tuple of methods.
    """
    if not isinstance(methods, (list, tuple)):
        raise wrong_type("methods", f"must be a list of methods, got {_described(methods)}")
    for place, method in enumerate(methods):
        if not isinstance(method, Method):
            raise wrong_type("methods", f"[{place}] must be a method, got {_described(method)}")
    return tuple(methods)


def _described(value: object) -> str:
    """Describes a wrong value and the right way to pass it."""
    if isinstance(value, Method):
        return f"a single {type(value).__name__}. Pass a list: methods=[{type(value).__name__}(...)]."
    if inspect.isclass(value) and issubclass(value, Method):
        return f"the class {value.__name__}. Pass an instance: methods=[{value.__name__}(...)]."
    if isinstance(value, GrowingDataset):
        return f"a {type(value).__name__}. It is a stream: train_dataset={{..., 'memory': buffer}}."
    what = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
    return f"{what}. Methods are instances, such as DER('memory'); what a buffer keeps and replays is an option of it."
