"""The agreement of all ranks on a step: before its first forward on what it is, after it on whether all could train it.

If memory runs out, the step is repeated on all ranks with smaller micro-batches, or the run ends. An error inside a
synchronised backward leaves the other ranks in a collective that cannot be cancelled. So in a repeatable step each rank
runs alone, the ranks compare results, and gradients are averaged once. On a single rank every step is one. On several
ranks those with a micro-batch larger than all before are; the others are synchronised as usual, and the collective
before each step tells them apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from accelerate.utils.memory import clear_device_cache
from torch import nn
from transformers.utils import logging

from mixer.checkpoint.write_errors import explain_write_error
from mixer.distributed.collectives import OtherRankError
from mixer.distributed.gradient_sync import average_gradients, finish_forward_sync, obstacle
from mixer.loading.batching import MicroBatchMemoryError, Size
from mixer.loading.loaded_step import StepBatch, StepCounts
from mixer.losses.stream_losses import StreamLosses
from mixer.mixture.counted_units import check_counted
from mixer.models.side_state import Snapshot
from mixer.run.class_checks import check_one_pass, optimizer_name, steps_in_backward
from mixer.run.hooks import Observer, step_hooks
from mixer.run.samples import LoadingRules
from mixer.run.state import Basis
from mixer.run.trl_metrics import keeps_metrics
from mixer.trainer.checks.engines import engine_of
from mixer.trainer.checks.labels import check_batch
from mixer.trainer.confirmation import confirm, counted
from mixer.trainer.failures import OUT_OF_MEMORY, leave_note
from mixer.utils.arrays import Int64Array
from mixer.utils.device import is_out_of_memory
from mixer.utils.text import printable

logger = logging.get_logger(__name__)

_MOST_LOGGED = 20  # skipped samples that each rank logs one by one
Result = TypeVar("Result")


class StepAgreement:
    """Loads and confirms steps with all ranks, and repeats those that do not fit into memory.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        losses: The losses of the streams, which count items.
        hooks: The hooks of its steps.
        rules: How the trainer loads, and which arguments lower the limit of micro-batches.
    """

    def __init__(self, basis: Basis, losses: StreamLosses, hooks: Sequence[Observer], rules: LoadingRules):
        self._trainer, self._plan, self._run, self._ranks = basis
        self._losses, self._hooks, self._rules = losses, hooks, rules
        self.is_on = False  # whether the run repeats steps
        self._obstacle: str | None = None  # reason why steps cannot be repeated in this run

    def begin_run(self) -> None:
        """Takes up, before anything else of a run, whether it repeats steps."""
        self.is_on = bool(self._trainer.args.auto_find_batch_size)
        self._num_trained = 0  # steps trained in this run
        # The largest micro-batches, of the present step and of those before. The first step proves nothing: the
        # optimizer allocates its state after it.
        self._largest = self._fits = Size(0, 0)
        self._step_logged, self._num_logged = -1, 0  # the last step whose skipped samples were logged

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

    # ---- Before the first forward ----

    def load_and_confirm(self, load: Callable[[], StepBatch | None]) -> StepBatch | None:
        """Loads a step, or catches an error, and reports it to the other ranks before anything else happens."""
        batch, counts, run = None, None, self._run
        error = run.method_error or run.policy_error or run.ledger.error
        if error is not None:
            error = explain_write_error(error, Path(str(self._trainer.args.output_dir)))
        try:
            if self._can_load(error):
                batch = load()
                counts = None if batch is None else self._counted(batch)
        except OtherRankError:
            batch = None
        except Exception as caught:  # sent to all ranks before it is raised
            error = caught
        plan = None if batch is None else batch.plan
        run.step.counts = counts = confirm(self._ranks, len(self._plan.streams), plan, counts, error)
        if batch is not None:
            run.step.plan = batch.plan
            self._note_skipped(batch, counts.skipped)
            check_counted(run.mixing, batch.plan, counts.tokens, counts.skipped, counts.labels)
        return batch

    def recount(self, batch: StepBatch) -> StepBatch:
        """Counts a step's items again."""
        return self.load_and_confirm(lambda: batch) or batch

    def reload(self, batch: StepBatch) -> StepBatch:
        """Loads the samples of a step again."""
        return self.load_and_confirm(lambda: self._run.present_loader.load(batch.plan, self._run.splitting)) or batch

    def _resplit(self, batch: StepBatch) -> StepBatch:
        """Splits a step into smaller micro-batches."""
        return self.load_and_confirm(lambda: self._run.present_loader.resplit(batch, self._run.splitting)) or batch

    def _can_load(self, error: Exception | None) -> bool:
        """Whether to load; ranks that communicate while loading do so only if all of them can."""
        if self._run.loader is None or not self._run.loader.uses_collectives:
            return error is None
        return bool(self._ranks.all_reduce_min(np.array([error is None], dtype=np.int64))[0])

    def _counted(self, batch: StepBatch) -> StepCounts:
        check_batch(self._plan, batch)
        trainer, num_micro_batches = self._trainer, len(batch.micro_batches)
        check_one_pass(trainer.args, trainer.accelerator, batch.plan.step, num_micro_batches, not self._num_trained)
        self._largest = Size.largest(batch.micro_batches)
        return counted(batch, self._losses, self._run, num_larger=int(self._is_larger))

    def _note_skipped(self, batch: StepBatch, skipped: Int64Array | None) -> None:
        """Logs the samples that a step skips, and ends the run on all ranks if there are too many."""
        self._run.step.left_out = []
        if skipped is None or not skipped.any():
            return
        own = [(stream_id, position) for stream_id, _, position in batch.broken]  # each rank knows of its own alone
        self._run.step.left_out = [
            (stream_id, position) for of_rank in self._ranks.gather(own) for stream_id, position in of_rank
        ]
        messages = [sample.message for _, sample, _ in batch.broken]
        if batch.plan.step != self._step_logged:  # otherwise it was reloaded
            self._step_logged = batch.plan.step
            for message in messages[: max(_MOST_LOGGED - self._num_logged, 0)]:
                logger.warning("Step %d continues without a sample. %s", batch.plan.step, printable(message))
            self._num_logged += len(messages)
            if self._num_logged >= _MOST_LOGGED > self._num_logged - len(messages):
                logger.warning("Further skipped samples are counted in the ledger (column skipped), but not logged.")
        mixing = self._run.mixing
        self._plan.skipping.check(mixing.names, mixing.skipped + skipped, mixing.seen, messages)

    # ---- Training, once or again ----

    @property
    def _is_larger(self) -> bool:
        """Whether the step has a micro-batch larger than any before."""
        return self._largest.samples > self._fits.samples or self._largest.elements > self._fits.elements

    @property
    def is_repeatable(self) -> bool:
        """Whether the confirmed step can be repeated."""
        if not self.is_on or self._obstacle is not None:
            return False
        return self._ranks.world_size == 1 or self._run.step.counts.num_larger > 0

    def note_trained(self) -> None:
        """Notes that all ranks have trained the step, with its largest micro-batch."""
        if self._num_trained and self._is_larger:
            self._fits = Size(*map(max, self._fits, self._largest))
        self._num_trained += 1

    def train_repeatably(self, work: Callable[[StepBatch], Result], batch: StepBatch) -> Result:
        """Trains a step on each rank alone, again in smaller micro-batches until it fits on all; averages gradients.

        Args:
            work: Trains a step without other ranks, and returns what it measured.
            batch: The step.

        Raises:
            MicroBatchMemoryError: If not even single samples fit.
        """
        model: nn.Module = self._trainer.model_wrapped
        finish_forward_sync(model)
        start = Snapshot(model, self._trainer.args.device)
        while (result := self._attempt(work, batch)) is None:
            batch = self._resplit(batch)
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
        most = self._ranks.all_reduce_max(np.array([*own, *self._largest]))
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
        if (new := old.halved(largest)) is None:
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

    # ---- Where it does not fit ----

    def explained(self, error: BaseException, step: int) -> BaseException:
        """Returns an error of a step; for one of memory that ends the run, one that names the option to lower.

        The other ranks wait for this one in a collective. Once it ends they find the connection broken, and the note; a
        backend that aborts or keeps waiting in that case (NCCL may) leaves them to the launcher.
        """
        if not isinstance(error, Exception) or isinstance(error, MicroBatchMemoryError) or not is_out_of_memory(error):
            return error
        text = self._explanation(step, self._trainer.args.process_index, self._largest)
        leave_note(OUT_OF_MEMORY + text)
        return MicroBatchMemoryError(text)

    def _explanation(self, step: int, rank: int, largest: Size) -> str:
        """Explains a step that ran out of memory, with the limit to set."""
        cap = self._run.splitting.cap
        smaller = cap.halved(largest)
        if smaller is None:
            return (
                f"Step {step} ran out of memory on rank {rank} with a single sample (of {largest.elements} elements): "
                "no micro-batch cap helps. Shorten the samples, use gradient_checkpointing=True or a smaller model."
            )
        if smaller.max_tokens is not None:
            hint = f"max_tokens_per_micro_batch={smaller.max_tokens}; the total batch is unchanged"
        else:
            mixing = self._run.mixing
            sizes = str(mixing.batch_size)
            if not mixing.clock.is_step_based:
                sizes = f"{mixing.schedule.name}(..., initial={mixing.initial_batch_size})"
            hint = self._rules.smaller_cap(sizes).format(smaller.max_samples)
        if not self.is_on:
            why = "Or set auto_find_batch_size=True, which halves the limit and repeats the step."
        elif self._obstacle is not None:
            why = f"auto_find_batch_size=True cannot repeat the step: {self._obstacle}."
        else:
            why = "auto_find_batch_size=True repeats a step only where its micro-batches are the largest so far."
        failure = f"Step {step} ran out of memory on rank {rank} with micro-batches of at most {cap}."
        return f"{failure} Set {hint}. {why}"
