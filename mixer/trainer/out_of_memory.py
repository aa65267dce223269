"""Recovery from out-of-memory errors: a step is repeated on all ranks with smaller micro-batches, or the run ends.

An error inside a synchronised backward leaves the other ranks in a collective that cannot be cancelled. So in a
repeatable step each rank runs alone, the ranks compare results, and gradients are averaged once. On a single rank every
step is one. On several ranks those with a micro-batch larger than all before are; the others are synchronised as usual,
and the collective before each step tells them apart.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from accelerate.utils.memory import clear_device_cache
from torch import nn
from transformers.utils import logging

from mixer.distributed.gradient_sync import average_gradients, finish_forward_sync, obstacle
from mixer.loading.batching import MicroBatchCap, MicroBatchMemoryError, Size
from mixer.loading.loaded_step import StepBatch
from mixer.losses.stream_losses import StreamLosses
from mixer.models.side_state import Snapshot
from mixer.models.trl_metrics import keeps_metrics
from mixer.run.class_checks import optimizer_name, steps_in_backward
from mixer.run.hooks import Observer, step_hooks
from mixer.run.loading import LoadingRules
from mixer.run.state import Basis
from mixer.trainer.checks.engines import engine_of
from mixer.trainer.confirmation import StepConfirmation
from mixer.trainer.failures import OUT_OF_MEMORY, leave_note
from mixer.utils.device import is_out_of_memory

logger = logging.get_logger(__name__)

Result = TypeVar("Result")


class Recovery:
    """Lowers the maximum micro-batch size when memory runs out, and keeps the total batch size.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        hooks: The hooks of its steps.
        losses: The losses of the streams.
        confirmation: Splits steps again.
        rules: How the trainer loads, and which arguments lower the limit.
    """

    def __init__(
        self,
        basis: Basis,
        hooks: Sequence[Observer],
        losses: StreamLosses,
        confirmation: StepConfirmation,
        rules: LoadingRules,
    ):
        self._trainer, _, self._run, self._ranks = basis
        self._hooks, self._losses, self._confirmation, self._rules = hooks, losses, confirmation, rules
        self.is_on = False  # whether the run repeats steps
        self._obstacle: str | None = None  # reason why steps cannot be repeated in this run

    def begin_run(self) -> None:
        """Takes up, before anything else of a run, whether it repeats steps."""
        self.is_on = bool(self._trainer.args.auto_find_batch_size)

    def prepare(self) -> None:
        """Finds out, once the model is ready for training, whether steps can be repeated in this run."""
        trainer, world_size = self._trainer, self._trainer.args.world_size
        engine, self._obstacle = engine_of(trainer), obstacle(trainer.model_wrapped, world_size)
        if self._obstacle is None and steps_in_backward(trainer.args):
            self._obstacle = f"optim={optimizer_name(trainer.args)!r} updates weights during the backward pass"
        if self._obstacle is None and not engine.has_step:
            self._obstacle = f"{engine.name} makes the optimizer step in the last backward"
        if self._obstacle is None and world_size > 1 and keeps_metrics(trainer):
            self._obstacle = f"{type(trainer).__name__} gathers metrics from all ranks in every loss"

    def train(self, work: Callable[[StepBatch, bool], Result], batch: StepBatch) -> Result:
        """Trains a step, again in smaller micro-batches until it fits on all ranks.

        Args:
            work: Trains a step, given whether its gradients are averaged over ranks, and returns what it measured.
            batch: The step.

        Raises:
            MicroBatchMemoryError: If it cannot be repeated, with the option to lower.
        """
        may_fail = self._trainer.args.world_size == 1 or self._run.step.counts.num_larger > 0
        with self._naming_the_cap(batch.plan.step):
            is_repeatable = self.is_on and self._obstacle is None and may_fail
            result = self._train_repeatably(work, batch) if is_repeatable else work(batch, True)
        self._confirmation.record_success()
        return result

    def _train_repeatably(self, work: Callable[[StepBatch, bool], Result], batch: StepBatch) -> Result:
        """Trains on each rank alone, and averages the gradients once all ranks are done."""
        model: nn.Module = self._trainer.model_wrapped
        finish_forward_sync(model)
        start = Snapshot(model, self._trainer.args.device)
        while (result := self._attempt(lambda split: work(split, False), batch)) is None:
            batch = self._confirmation.resplit(batch)
            start.restore()
        for hook in step_hooks(self._hooks):
            hook.before_averaging()
        average_gradients(model, self._ranks, self._trainer.args.world_size)
        return result

    def _attempt(self, work: Callable[[StepBatch], Result], batch: StepBatch) -> Result | None:
        """Runs work that may fail on some ranks; returns `None` on all of them if it must be repeated."""
        result, error, is_memory = None, None, False
        try:
            result = work(batch)
        except Exception as caught:  # sent to all ranks before it is raised
            is_memory = is_out_of_memory(caught)
            # The traceback keeps tensors alive.
            error = caught.with_traceback(None) if is_memory else caught
        own = [int(error is not None and not is_memory), self._trainer.args.process_index + 1 if is_memory else 0]
        most = self._ranks.all_reduce_max(np.array([*own, *self._confirmation.largest]))
        others_failed, rank, *largest = most.tolist()
        if others_failed:
            self._ranks.raise_on_all(error)
        if not rank:
            return result
        del result
        self._halve(batch.plan.step, rank - 1, Size(*largest), error)
        return None

    def _halve(self, step: int, rank: int, largest: Size, error: Exception | None) -> None:
        old = self._run.splitting.cap
        if (new := old.halved(largest)) is None or not self.is_on:
            raise MicroBatchMemoryError(self._explanation(step, rank, largest)) from error
        self._run.splitting = replace(self._run.splitting, cap=new)
        for hook in step_hooks(self._hooks):
            hook.cancel()  # it may hold memory
        self._losses.stop_listening()
        self._trainer.model_wrapped.zero_grad()
        clear_device_cache(garbage_collection=True)
        if self._trainer.is_world_process_zero():
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
            text = self._explanation(step, self._trainer.args.process_index, self._confirmation.largest)
            leave_note(OUT_OF_MEMORY + text)
            raise MicroBatchMemoryError(text) from error

    def _explanation(self, step: int, rank: int, largest: Size) -> str:
        mixing = self._run.mixing
        sizes = str(mixing.batch_size)
        if not mixing.clock.is_step_based:
            sizes = f"{mixing.schedule.name}(..., initial={mixing.initial_batch_size})"
        if not self.is_on:
            why = "Or set auto_find_batch_size=True, which halves the limit and repeats the step."
        elif self._obstacle is not None:
            why = f"auto_find_batch_size=True cannot repeat the step: {self._obstacle}."
        else:
            why = "auto_find_batch_size=True repeats a step only where its micro-batches are the largest so far."
        return _explain(step, rank, self._run.splitting.cap, largest, self._rules.smaller_cap(sizes), why)


def _explain(step: int, rank: int, cap: MicroBatchCap, largest: Size, smaller_cap: str, why_not_repeated: str) -> str:
    """Returns the error message for a step that ran out of memory, with the cap to set.

    Args:
        step: Number of the step, from 1.
        rank: The rank that ran out of memory.
        cap: Its micro-batch cap.
        largest: Its largest micro-batch.
        smaller_cap: Arguments that lower a cap in samples; `{}` stands for their number.
        why_not_repeated: Why the step was not retried with a smaller cap.
    """
    smaller = cap.halved(largest)
    if smaller is None:
        return (
            f"Step {step} ran out of memory on rank {rank} with a single sample (of {largest.elements} elements): no "
            "micro-batch cap helps. Shorten the samples, use gradient_checkpointing=True or a smaller model."
        )
    if smaller.max_tokens is not None:
        hint = f"max_tokens_per_micro_batch={smaller.max_tokens}; the total batch is unchanged"
    else:
        hint = smaller_cap.format(smaller.max_samples)
    failure = f"Step {step} ran out of memory on rank {rank} with micro-batches of at most {cap}."
    return f"{failure} Set {hint}. {why_not_repeated}"
