"""The methods of a run: replay buffers among its streams, and the user's own."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixer.checkpoint.checkpoint_files import METHODS_ENTRY
from mixer.loading.loaded_step import MicroBatch, StepBatch
from mixer.losses.stream_losses import factor_of
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.mixture.stream import Stream
from mixer.run.hooks import ForwardResult
from mixer.run.plan import RunPlan
from mixer.run.state import Basis
from mixer.trainer.method import NEEDS, Method, RunContext
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.files import WriteError, folder_name
from mixer.utils.validation import whole_number

_FOLDER = "methods"
_ATTACHED_TO = "_attached_to"  # attribute of a method: the run that it was given last


class MethodList:
    """The methods of a run: their terms in the loss, their states, and their log entries.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        passes: Run the model outside of training.
        dtype: The type in which terms are added up.

    Raises:
        ValueError: If methods do not go together, or do not support the run.
    """

    def __init__(self, basis: Basis, passes: AuxiliaryPasses, dtype: torch.dtype):
        self._trainer, self._plan, self._run, _ = basis
        self._passes, self._dtype = passes, dtype
        self.all: Sequence[Method] = self._plan.methods
        # Of methods with a term, by index.
        self._term_names = {number: method.name for number, method in enumerate(self.all) if _has_term(method)}
        _check_names(self.all)
        self._terms = torch.zeros(0)  # `[num_methods]`: this rank's terms in the present step
        self._num_terms, self._term_sums = 0, torch.zeros(0)  # steps since the last log entry, and their terms
        self.trained: StepBatch | None = None  # the step that is to be closed
        self.attach()

    def __iter__(self) -> Iterator[Method]:
        yield from self.all

    def __len__(self) -> int:
        return len(self.all)

    # ---- Joining a run ----

    def attach(self) -> None:
        """Attaches the methods to the run, or anew to a trial of a search.

        Raises:
            ValueError: If methods do not support the run.
        """
        self._context = self._new_context()
        for method in self.all:
            method.attach(self._context)
            vars(method)[_ATTACHED_TO] = self._context
            _check_needs(method, self._plan)

    def _new_context(self) -> RunContext:
        args, run = self._trainer.args, self._run
        return RunContext(
            streams=tuple(self._plan.streams),
            rank=args.process_index,
            world_size=args.world_size,
            is_writer=args.local_process_index == 0,
            device=args.device,
            rank_sync=self._passes.ranks,
            planner=lambda: run.mixing.planner,
            passes=self._passes,
            skipped=self._plan.skipping.stream_ids,
        )

    def check_attached(self) -> None:
        """Refuses a method that another trainer has since been given."""
        for method in self.all:
            if vars(method)[_ATTACHED_TO] is not self._context:
                text = f": {method.name} has since been passed to another trainer and takes part in the steps of that "
                raise wrong_value("methods", f"{text}one. Create a method per trainer, or finish training before.")

    # ---- A step ----

    def retrieve(self, batch: StepBatch, reload: Callable[[StepBatch], StepBatch]) -> StepBatch:
        """Lets methods choose other samples for a step; returns the step to train."""
        for method in self.all:
            if method.retrieve(batch):
                batch = reload(batch)
        return batch

    def begin_step(self) -> None:
        """Begins a step, or repeats it."""
        if self.all:
            self._terms = torch.zeros(len(self.all), dtype=torch.float32, device=self._trainer.args.device)

    def has_priority(self, micro: MicroBatch) -> bool:
        """Whether a micro-batch runs before the others."""
        return any(method.has_priority(micro.first_stream) for method in self.all)

    def order(self, batch: StepBatch) -> list[int]:
        """Returns the order of a step's micro-batches; the same on every rank."""
        numbers = list(range(len(batch.micro_batches)))
        if not self.all:
            return numbers
        return sorted(numbers, key=lambda number: not self.has_priority(batch.micro_batches[number]))

    def factor(self, stream_id: int) -> float:
        """Returns the methods' factor on the loss of a stream's samples."""
        step = self._run.step
        return math.prod(factor_of(one.factors(step.present_plan, step.counts.items), stream_id) for one in self.all)

    def add_terms(self, trained: ForwardResult, output: Any, loss: Tensor) -> Tensor:
        """Returns a loss with the methods' terms for a micro-batch."""
        if trained.micro.is_padding:
            return loss
        total, trained = torch.zeros_like(loss), replace(trained, output=output)
        for number, method in enumerate(self.all):
            method.end_forward(trained)
            if (term := method.term(trained)) is not None:
                total = total + term
                self._terms[number] += term.detach() / self._trainer.args.world_size
        return loss + total

    def end_step(self, batch: StepBatch) -> None:
        """Adds up the terms of a step that was trained."""
        if not self.all:
            return
        self.trained = batch
        if self._term_names:
            self._term_sums = self._term_sums + self._passes.ranks.add_up(self._terms)
            self._num_terms += 1

    def close_step(self) -> None:
        """Closes the step for all methods, before the next one is planned."""
        batch, self.trained = self.trained, None
        if batch is None:
            return
        for method in self.all:
            try:
                method.close(batch)
            except Exception as error:  # deferred until all ranks can raise it together
                if self._trainer.args.world_size == 1 and not isinstance(error, WriteError):
                    raise
                self._run.method_error = self._run.method_error or error

    # ---- Checkpoints ----

    def settings(self) -> list[str]:
        """Lists the settings of the methods that form the gradient."""
        return sorted(setting for method in self.all if (setting := method.settings()) is not None)

    def check_settings(self, state: Mapping[str, Any]) -> None:
        """Refuses a saved state of other methods; a state without an entry fits any."""
        now = self.settings()
        saved = state.get(METHODS_ENTRY, now)
        if saved != now:
            was, is_now = (", ".join(settings) or "nothing" for settings in (saved, now))
            raise wrong_value("methods", f"that form the gradient were {was} and are {is_now} now")

    def load(self, folder: Path) -> None:
        """Restores the methods' states from a checkpoint, or from another folder of `folder_of`."""
        for method in self.all:
            method.load(self.folder_of(folder, method), self._plan.config.allow_inexact)

    @staticmethod
    def folder_of(folder: Path, method: Method) -> Path:
        """Returns the folder of a method's state in a checkpoint."""
        return folder / _FOLDER / folder_name(method.name)

    # ---- Logs ----

    def load_log_state(self, state: Mapping[str, Any]) -> None:
        """Restores the methods' part of the next log entry; an empty state starts anew."""
        self._begin_terms(state)
        for method in self.all:
            method.log_state = state.get("methods", {}).get(method.name, {})

    def _begin_terms(self, state: Mapping[str, Any]) -> None:
        sums = state.get("terms", [0.0] * len(self.all))
        self._term_sums = torch.tensor(sums, dtype=self._dtype, device=self._trainer.args.device)
        self._num_terms = whole_number(state.get("num_terms", 0), "num_terms")

    def log_state(self) -> dict[str, Any]:
        """Returns the methods' part of the next log entry."""
        if not self.all:
            return {}
        states = {method.name: dict(method.log_state) for method in self.all}
        return {"terms": self._term_sums.tolist(), "num_terms": self._num_terms, "methods": states}

    def note_memories(self) -> None:
        """Records in the ledger how many samples each method remembers."""
        for method in self.all:
            step = self._trainer.state.global_step
            self._run.ledger.record_memory(step, method.name, *method.memory_counts())

    def log_entries(self) -> dict[str, float]:
        """Returns the methods' log entries (mean terms since the last entry); records these terms, and memories."""
        entries: dict[str, float] = {}
        if self._num_terms:
            means = (self._term_sums / self._num_terms).tolist()
            terms = {name: means[number] for number, name in self._term_names.items()}
            entries = {f"term/{name}": value for name, value in terms.items()}
            steps = [self._trainer.state.global_step] * len(terms)
            self._run.ledger.record("terms", {"step": steps, "term": [*terms], "value": [*terms.values()]})
            self._begin_terms({})
        for method in self.all:
            entries |= method.log_entries()
        self.note_memories()
        return entries


def methods_of(streams: Sequence[Stream], own: Sequence[Method]) -> tuple[Method, ...]:
    """Returns the methods of a run: the replay buffers among its streams, and the user's own."""
    return (*(stream.dataset.as_method(stream.name, streams) for stream in streams if stream.is_memory), *own)


def _has_term(method: Method) -> bool:
    """Whether a method overrides `term`."""
    return getattr(method.term, "__func__", None) is not Method.term


def _check_needs(method: Method, plan: RunPlan) -> None:
    """Refuses unknown needs, and a method that has asked for more of a step than the run was planned with."""
    needs = set(method.needs)
    if unknown := sorted(needs - NEEDS.keys()):
        raise InvalidValueError(option="methods", expected=f"{method.name}.needs of {list(NEEDS)}", found=unknown)
    planned = {"one stream each": plan.one_stream_each, "samples": plan.keeps_samples}
    if late := sorted(name for name, is_planned in planned.items() if name in needs and not is_planned):
        text = f"{method.name} needs {late} only from attach on. Set it in the class or in __init__."
        raise InvalidValueError.about("methods", text, found=late)


def _check_names(methods: Sequence[Method]) -> None:
    counts = Counter(method.name for method in methods)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise wrong_value("methods", f": names must differ, but {twice} occur more than once.", found=twice)
    weighing = [method.name for method in methods if type(method).factors is not Method.factors]
    if len(weighing) > 1:
        raise wrong_value(
            "methods", f": {weighing} each set factors on the losses, which would conflict: use only one."
        )
