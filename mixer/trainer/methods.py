"""Methods in the steps of a Trainer: replay buffers among its streams, and the user's own."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixer.loading.step import MicroBatch, StepBatch
from mixer.trainer.checkpointing.files import METHODS_ENTRY
from mixer.trainer.checkpointing.save import SavingMixin
from mixer.trainer.hooks import ForwardResult, StepHook
from mixer.trainer.losses import factor_of
from mixer.trainer.method import Method, RunContext, as_methods
from mixer.trainer.side_runs import SideRuns
from mixer.utils.files import WriteError, folder_name

_FOLDER = "methods"


class MethodsMixin(SavingMixin):
    """A Trainer that lets methods take part in its steps."""

    _methods: tuple[Method, ...] = ()
    _method_run: RunContext  # the run as methods see it
    _update: StepBatch | None = None  # the step in training
    _term_names: dict[int, str]  # names of methods with a loss term, by index
    _terms: Tensor  # `[num_methods]`: this rank's terms in the present step
    _term_sums: Tensor  # `[num_methods]`: sums since the last log entry
    _num_terms: int = 0  # steps since the last log entry

    _observers: tuple[StepHook, ...] = ()  # hooks that come before the methods

    def _attach_methods(self, methods: object) -> None:
        """Attaches the replay buffers among the streams and the user's methods to the run."""
        own = [stream.dataset.as_method(stream.name) for stream in self.streams if stream.is_memory]
        self._methods = (*own, *as_methods(methods))
        self._term_names = {number: method.name for number, method in enumerate(self._methods) if method.adds_term}
        self._check_names()
        self._method_run = RunContext(
            streams=tuple(self.streams),
            rank=self.args.process_index,
            world_size=self.args.world_size,
            is_writer=self.args.local_process_index == 0,
            device=self.args.device,
            rank_sync=self._rank_sync,
            planner=lambda: self.mixing.planner,
            runs=SideRuns(self),
            skipped=self._skipping.stream_ids,
        )
        for method in self._methods:
            method.attach(self._method_run)
            method.attached_to = self._method_run
        self._hooks = (*self._observers, *self._methods)
        self._keeps_output = bool(self._methods)
        self._keeps_samples = any(method.needs_samples for method in self._methods)
        self._wants_one_stream_each |= any(method.one_stream_each for method in self._methods)

    def _check_names(self) -> None:
        counts = Counter(method.name for method in self._methods)
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise ValueError(f"methods: names must differ, but {twice} occur more than once.")
        weighing = [method.name for method in self._methods if type(method).factors is not Method.factors]
        if len(weighing) > 1:
            raise ValueError(
                f"methods: {weighing} each set factors on the losses, which would conflict: use only one of them."
            )

    def _load_methods(self, checkpoint: str) -> None:
        for method in self._methods:
            method.load(Path(checkpoint) / _FOLDER / folder_name(method.name), self._allow_inexact)

    def _method_settings(self) -> list[str]:
        return sorted(setting for method in self._methods if (setting := method.settings()) is not None)

    def _check_method_settings(self, state: Mapping[str, Any]) -> None:
        """Refuses a saved state of other methods; a state without an entry fits any."""
        now = self._method_settings()
        saved = state.get(METHODS_ENTRY, now)
        if saved != now:
            was, is_now = (", ".join(settings) or "nothing" for settings in (saved, now))
            raise ValueError(f"the methods that form the gradient were {was} and are {is_now} now")

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        for method in self._methods if self.args.should_save else ():
            with self._putting_errors_off(f"{method.name}, a part of its methods"):
                method.save(Path(output_dir) / _FOLDER / folder_name(method.name))

    def _prepare_run(self) -> None:
        for method in self._methods:
            if method.attached_to is not self._method_run:
                raise ValueError(
                    f"methods: {method.name} has since been passed to another trainer and takes part in the steps of "
                    "that one. Create a method per trainer, or finish training before you create the next trainer."
                )
        super()._prepare_run()

    # ---- A step ----

    def _before_training(self, batch: StepBatch) -> StepBatch:
        batch = super()._before_training(batch)
        for method in self._methods:
            if method.retrieve(batch):
                batch = self._load_and_confirm(partial(self._present_loader.load, batch.plan)) or batch
        return batch

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Trains a step, and adds up its methods' terms for the log; see `Trainer.training_step`."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if isinstance(inputs, StepBatch) and self._methods:
            self._update = inputs
            if self._term_names:
                self._term_sums = self._term_sums + self._rank_sync.add_up(self._terms)
                self._num_terms += 1
        return loss

    def _begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        if self._methods:
            self._terms = torch.zeros(len(self._methods), dtype=torch.float32, device=self.args.device)
        super()._begin_step(model, batch)

    def _order(self, batch: StepBatch) -> list[int]:
        numbers = super()._order(batch)
        if not self._methods:
            return numbers
        return sorted(numbers, key=lambda number: not self._goes_first(batch.micro_batches[number]))

    def _goes_first(self, micro: MicroBatch) -> bool:
        return any(method.goes_first(int(micro.stream_ids[0])) for method in self._methods)

    def _factor(self, stream_id: int) -> float:
        factors = [method.factors(self._plan, self._step_counts.items) for method in self._methods]
        return math.prod((factor_of(own, stream_id) for own in factors), start=super()._factor(stream_id))

    @contextlib.contextmanager
    def _terms_added(self, trained: ForwardResult) -> Iterator[None]:
        """Adds the methods' terms to the loss of the backward, after all scaling by the Trainer or a subclass."""
        if not self._methods:
            yield
            return
        accelerator, backward = self.accelerator, self.accelerator.backward

        def backward_with_terms(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not trained.micro.is_padding:
                loss = loss + self._sum_of_terms(replace(trained, output=self._tracker.output), loss)
            return backward(loss, *args, **kwargs)

        accelerator.backward = backward_with_terms
        try:
            yield
        finally:
            del accelerator.backward  # the instance attribute, which hides the class's method

    def _sum_of_terms(self, trained: ForwardResult, loss: Tensor) -> Tensor:
        total = torch.zeros_like(loss)
        for number, method in enumerate(self._methods):
            if (term := method.term(trained)) is not None:
                total = total + term
                self._terms[number] += term.detach() / self.args.world_size
        return total

    def _close_methods(self) -> None:
        """Closes the step for all methods, before the next one is planned."""
        batch, self._update = self._update, None
        if batch is None:
            return
        for method in self._methods:
            try:
                method.close(batch)
            except Exception as error:  # deferred until all ranks can raise it together
                if self.args.world_size == 1 and not isinstance(error, WriteError):
                    raise
                self._method_error = self._method_error or error

    def _raise_method_error(self) -> None:
        """Raises on all ranks if a method failed on one of them after the last step."""
        error = self._explained(self._method_error)
        if self._methods and self._rank_sync.most(int(error is not None)):
            self._rank_sync.raise_on_all(error)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._raise_method_error()
        super()._save_checkpoint(*args, **kwargs)

    def _begin_terms(self, state: Mapping[str, Any]) -> None:
        """Restores the sums for the next log entry; an empty state starts at 0."""
        sums = state.get("terms", [0.0] * len(self._methods))
        self._term_sums = torch.tensor(sums, dtype=self._sum_dtype, device=self.args.device)
        self._num_terms = state.get("num_terms", 0)

    def _load_log_state(self, state: Mapping[str, Any]) -> None:
        """Restores the methods' part of the next log entry; an empty state starts anew."""
        self._begin_terms(state)
        for method in self._methods:
            method.load_log_state(state.get("methods", {}).get(method.name, {}))

    def _log_state(self) -> dict[str, Any]:
        if not self._methods:
            return {}
        states = {method.name: method.log_state() for method in self._methods}
        return {"terms": self._term_sums.tolist(), "num_terms": self._num_terms, "methods": states}

    def note_memories(self) -> None:
        """Records in the ledger how many samples each method remembers."""
        for method in self._methods:
            self.ledger.record_memory(self.state.global_step, method.name, method.contents(), method.classes())

    def _method_entries(self) -> dict[str, float]:
        """Returns the methods' log entries (mean terms since the last entry) and records their memories."""
        entries: dict[str, float] = {}
        if self._num_terms:
            means = (self._term_sums / self._num_terms).tolist()
            entries = {f"term/{name}": means[number] for number, name in self._term_names.items()}
            self._begin_terms({})
        for method in self._methods:
            entries |= method.log_entries()
        self.note_memories()
        return entries
