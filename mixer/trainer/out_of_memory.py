"""Recovery from out-of-memory errors: a step is repeated on all ranks with smaller micro-batches, or the run ends.

An error inside a synchronised backward leaves the other ranks in a collective that cannot be cancelled. So in an armed
step each rank runs alone, the ranks compare results, and gradients are averaged once. A single rank arms every step.
Several ranks arm the steps with a micro-batch larger than all before; the others are synchronised as usual, and the
collective before each step tells them apart.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from torch import Tensor, nn
from transformers.utils import logging

from mixer.distributed.gradient_sync import average_gradients, obstacle, settle
from mixer.loading.collate import batch_mapping
from mixer.loading.memory import MicroBatchMemoryError, Size, Window, explain, is_out_of_memory
from mixer.loading.step import StepBatch, StepCounts
from mixer.models.side_state import Snapshot
from mixer.models.trl import keeps_metrics
from mixer.trainer.checks import check_one_pass, optimizer_name, steps_in_backward
from mixer.trainer.engines import engine_of
from mixer.trainer.failures import OUT_OF_MEMORY, among_others, leave_note
from mixer.trainer.losses import Trial
from mixer.trainer.methods import MethodsMixin

logger = logging.get_logger(__name__)

Result = TypeVar("Result")


class RecoveryMixin(MethodsMixin):
    """A Trainer whose `auto_find_batch_size` lowers the maximum micro-batch size and keeps the total batch size."""

    _window: Window
    _largest: Size
    _num_trained: int = 0  # steps trained by this process
    _held: contextlib.ExitStack  # what the Trainer is shown during the loop
    _obstacle: str | None = None  # reason why steps cannot be repeated in this run

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains, without the Trainer's own search for a batch size; see `Trainer.train`."""
        self._recovers = bool(self.args.auto_find_batch_size)
        with (
            among_others(lambda: f"in step {self.mixing.clock.step + 1}", lambda: self.args.ddp_timeout),
            self._arguments_held(auto_find_batch_size=False),  # otherwise the whole loop would restart
            contextlib.ExitStack() as self._held,
        ):
            return super().train(*args, **kwargs)

    def _begin_run(self) -> None:
        super()._begin_run()
        self._window, self._num_trained = Window(), 0
        # Callbacks, evaluation and checkpoints see the user's value.
        self._held.enter_context(self._arguments_held(auto_find_batch_size=self._recovers))

    def _prepare_run(self) -> None:
        super()._prepare_run()
        engine, self._obstacle = engine_of(self), obstacle(self.model_wrapped, self.args.world_size)
        if self._obstacle is None and steps_in_backward(self.args):
            self._obstacle = f"optim={optimizer_name(self.args)!r} updates weights during the backward pass"
        if self._obstacle is None and not engine.has_step:
            self._obstacle = f"{engine.name} makes the optimizer step in the last backward"
        if self._obstacle is None and self.args.world_size > 1 and keeps_metrics(self):
            self._obstacle = f"{type(self).__name__} gathers metrics from all ranks in every loss"

    def _contents(self, batch: StepBatch) -> StepCounts:
        contents = super()._contents(batch)
        num_micro_batches = len(batch.micro_batches)
        check_one_pass(self.args, self.accelerator, batch.plan.step, num_micro_batches, not self._num_trained)
        batches = [(batch_mapping(micro.inputs), len(micro.stream_ids)) for micro in batch.micro_batches]
        self._largest = Size.largest(batches)
        return replace(contents, num_larger=int(self._window.is_beyond(self._largest)))

    def _vote(self, batch: StepBatch, kind: int, trial: Trial) -> tuple[StepBatch, Tensor]:
        vote = partial(super()._vote, kind=kind, trial=trial)
        with self._naming_the_cap(batch.plan.step):
            if self._obstacle is not None:
                return vote(batch)
            settle(self.model_wrapped)
            while (result := self._attempt(vote, batch)) is None:
                batch = self._resplit(batch)
            return result

    def _train_step(self, model: nn.Module, batch: StepBatch, is_synchronised: bool = True) -> tuple[Tensor, Tensor]:
        may_fail = self.args.world_size == 1 or self._step_counts.num_larger > 0
        with self._naming_the_cap(batch.plan.step):
            if self._recovers and self._obstacle is None and may_fail:
                result = self._train_armed(model, batch)
            else:
                result = super()._train_step(model, batch, is_synchronised)
        self._window.passed(self._largest)
        self._num_trained += 1
        return result

    def _train_armed(self, model: nn.Module, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Runs a step in ever smaller micro-batches until it fits on all ranks."""
        train = super()._train_step

        def train_alone(split: StepBatch) -> tuple[Tensor, Tensor]:
            # A collator that masks at random may give new micro-batches other numbers of items.
            self._items_in_batch = torch.tensor(self._num_items_told, device=self.args.device)
            return train(model, split, is_synchronised=False)

        settle(model)
        start = Snapshot(model, self.args.device)
        while (result := self._attempt(train_alone, batch)) is None:
            batch = self._resplit(batch)
            start.restore()
        for hook in self._hooks:
            hook.before_averaging()
        average_gradients(model, self._rank_sync, self.args.world_size)
        return result

    def _resplit(self, batch: StepBatch) -> StepBatch:
        return self._load_and_confirm(lambda: self._present_loader.resplit(batch)) or batch

    def _attempt(self, work: Callable[[StepBatch], Result], batch: StepBatch) -> Result | None:
        """Runs work that may fail on some ranks; returns `None` on all of them if it must be repeated."""
        result, error, is_memory = None, None, False
        try:
            result = work(batch)
        except Exception as caught:  # sent to all ranks before it is raised
            is_memory = is_out_of_memory(caught)
            # The traceback keeps tensors alive.
            error = caught.with_traceback(None) if is_memory else caught
        own = [int(error is not None and not is_memory), self.args.process_index + 1 if is_memory else 0]
        others_failed, rank, *largest = self._rank_sync.greatest(np.array([*own, *self._largest])).tolist()
        if others_failed:
            self._rank_sync.raise_on_all(error)
        if not rank:
            return result
        del result
        self._halve(batch.plan.step, rank - 1, Size(*largest), error)
        return None

    def _halve(self, step: int, rank: int, largest: Size, error: Exception | None) -> None:
        loader, old = self._present_loader, self._present_loader.cap
        if (new := old.halved(largest)) is None or not self._recovers:
            raise MicroBatchMemoryError(self._explanation(step, rank, largest)) from error
        loader.cap = new
        for hook in self._hooks:
            hook.cancel()  # it may hold memory
        if self._row_losses is not None:
            self._row_losses.row_losses()  # stop waiting for the forward that failed
        self.model_wrapped.zero_grad()
        clear_device_cache(garbage_collection=True)
        if self.is_world_process_zero():
            logger.warning(
                "Step %d ran out of memory on rank %d. It is repeated with at most %s per micro-batch instead of %s; "
                "the total batch size stays the same.",
                *(step, rank, new, old),
            )

    @contextlib.contextmanager
    def _naming_the_cap(self, step: int) -> Iterator[None]:
        """Turns an out-of-memory error that cannot be recovered from into one that names the option to lower.

        The other ranks wait for this one in a collective. Once it ends they find the connection broken, and the note; a
        backend that aborts or keeps waiting in that case (NCCL may) leaves them to the launcher.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, MicroBatchMemoryError) or not is_out_of_memory(error):
                raise
            text = self._explanation(step, self.args.process_index, self._largest)
            leave_note(OUT_OF_MEMORY + text)
            raise MicroBatchMemoryError(text) from error

    def _explanation(self, step: int, rank: int, largest: Size) -> str:
        mixing, sizes = self.mixing, str(self.mixing.batch_size)
        if not mixing.clock.counts_steps:
            sizes = f"{mixing.schedule.name}(..., initial={mixing.initial_batch_size})"
        if not self._recovers:
            why = "Or set auto_find_batch_size=True, which halves the limit and repeats the step."
        elif self._obstacle is not None:
            why = f"auto_find_batch_size=True cannot repeat the step: {self._obstacle}."
        else:
            why = "auto_find_batch_size=True repeats a step only where its micro-batches are the largest so far."
        return explain(step, rank, self._present_loader.cap, largest, self._smaller_cap(sizes), why)

    def _smaller_cap(self, sizes: str) -> str:
        """Describes the arguments that lower the limit; `{}` stands for the number of samples."""
        return f"per_device_train_batch_size={{}}, with batch_size={sizes} to keep the total"
