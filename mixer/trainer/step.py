"""A step of a run, in six sentences: plan, load, confirm, forward and backward, synchronise and step, observe.

1. The mixture plans how many samples every stream contributes, and which.
2. The loader loads this rank's share of them and splits it into micro-batches.
3. All ranks confirm that they planned the same step and could load it, before any forward.
4. Each micro-batch runs forward and backward; the hooks take part.
5. The last backward averages the gradients over the ranks, and the Trainer makes the optimizer step.
6. The policy and the schedule observe the result and decide on the next step; the ledger records it.

`StepRunner.load` is 1 to 3, `StepRunner.train` is 4 and the first half of 5, `StepRunner.close` is 6.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mixer.loading.loaded_step import MicroBatch, StepBatch, StepResult, read_together
from mixer.losses.stream_losses import StreamLosses
from mixer.measurements import Kind, Results
from mixer.measurements.hooks.stream_gradients import RunProbe
from mixer.mixture.step_plan import StepPlan
from mixer.run.hf_compat import loop_losses
from mixer.run.hooks import ForwardResult, Observer, step_hooks
from mixer.run.state import Basis
from mixer.trainer.agreement import StepAgreement
from mixer.trainer.checks.labels import LabelsSeen
from mixer.trainer.guard import NonFiniteLossError as NonFiniteLossError, WeightGuard
from mixer.trainer.loss_kinds import LossKinds
from mixer.trainer.methods import MethodList
from mixer.trainer.micro_batch import MicroBatchResult, MicroBatchTraining
from mixer.trainer.own_step import OwnStep, has_own_step
from mixer.trainer.stream_separation import StreamSeparation
from mixer.utils.arrays import BoolArray
from mixer.utils.errors import wrong_type

_NO_CONTEXT = contextlib.nullcontext()


class StepRunner:
    """Runs the steps of a trainer, each on all its micro-batches and ranks as if one process had the whole batch.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        losses: The losses of the streams.
        hooks: The hooks of its steps.
        methods: The methods of the run.
        agreement: Loads steps, confirms them with all ranks, and repeats what does not fit into memory.
        guard: Leaves out steps that would destroy the weights.
        probe: The hook that measures the streams' gradients, if there is one.
    """

    def __init__(
        self,
        basis: Basis,
        losses: StreamLosses,
        hooks: Sequence[Observer],
        methods: MethodList,
        agreement: StepAgreement,
        guard: WeightGuard,
        probe: RunProbe | None,
    ):
        self._trainer, plan, self._run, self._ranks = basis
        self._observers, self._hooks = hooks, step_hooks(hooks)
        self._losses, self._agreement, self._methods = losses, agreement, methods
        self._separation = StreamSeparation(basis, losses, len(self._hooks) > 0, agreement)
        self._kinds = LossKinds(basis, losses, agreement)
        self._micro = MicroBatchTraining(self._trainer, self._run, losses, self._kinds, methods)
        self._guard, self._probe = guard, probe
        self._is_unfiltered = False  # from the last backward until the gradient is checked
        self._teaches = len(methods) > 0  # also without labels
        self._labels = LabelsSeen(plan.streams, self._trainer.is_world_process_zero())
        self._finished: StepResult | None = None
        self._num_unlike = torch.zeros(())  # micro-batches whose rows do not explain their loss, over all ranks
        self._counts = self._run.step.counts  # before the forward of a micro-batch
        self._num_first = 0  # remaining micro-batches of the present step that go first
        self._load_started = self._train_started = 0.0
        self._load_counts: dict[str, int] = {}
        self._times: dict[str, Any] = {}  # of the step, for the ledger

    def begin_run(self) -> None:
        """Begins a run."""
        self._hooks = step_hooks(self._observers)
        self._finished = self._run.policy_error = self._run.method_error = None
        self._run.step.clear()
        self._guard.begin_run()
        self._losses.begin_run()
        self._kinds.begin_run()
        self._labels.begin_run()

    def end(self) -> None:
        """Ends a run that no signal has stopped; raises a `ValueError` if it had nothing to learn from."""
        self._labels.end(self._teaches)

    def replacing_training_step(self) -> contextlib.AbstractContextManager[None]:
        """Makes the Trainer's loop train whole steps; a `training_step` of the user's then gets each micro-batch."""
        own_step = OwnStep(self._trainer, self.train) if has_own_step(self._trainer) else None
        self._micro.begin_run(own_step)
        return contextlib.nullcontext() if own_step is None else own_step.replacing()

    # ---- Plan, load, confirm ----

    def load(self, epoch_iterator: Iterator[Any], device: torch.device) -> tuple[list[Any], Tensor | None]:
        """Plans, loads and confirms the next step with all ranks, and sets its learning rate.

        Args:
            epoch_iterator: Plans and loads: an iteration over the `MixingLoader` of the run.
            device: Device of the number of items.

        Returns:
            As `Trainer.get_batch_samples`; no batch if no step is left.
        """
        self._load_started, self._run.has_begun = time.perf_counter(), True
        if (batch := self._agreement.load_and_confirm(lambda: next(epoch_iterator, None))) is None:
            return [], None
        self._load_counts = dict(zip(("hits", "misses"), self._run.present_loader.hits_and_misses, strict=True))
        batch = self._separation.separated(batch)
        self._losses.start_reading()
        batch = self._methods.retrieve(batch, self._agreement.reload)
        self._run.set_learning_rate()
        self._train_started = time.perf_counter()
        return [batch], torch.full((), self._losses.num_items_in_batch, device=device)

    # ---- Forward and backward ----

    def train(self, model: nn.Module, batch: StepBatch, num_items_in_batch: Tensor | int | None) -> Tensor:
        """Trains a whole step, up to its complete gradient; see `Trainer.training_step`."""
        if not self._run.step.micro_items:
            raise wrong_type(
                "get_batch_samples", f"of {type(self._trainer).__name__} bypasses the mixin's: call super()."
            )
        try:
            if self._agreement.is_repeatable:
                loss, sums = self._agreement.train_repeatably(partial(self._train_alone, model), batch)
            else:
                loss, sums = self._train_micro_batches(model, batch, num_items_in_batch)
            self._agreement.note_trained()
            for hook in self._hooks:
                hook.end_backward(model)
        except BaseException as error:
            explained = self._agreement.explained(error, batch.plan.step)
            for hook in self._hooks:
                hook.cancel()
            if explained is error:
                raise
            raise explained from error
        sums = self._ranks.add_up(sums)
        self._finished, self._num_unlike = self._result(batch, sums[:-1]), sums[-1]
        self._labels.note(batch.plan.counts, self._run.step.counts.items, self._teaches)
        self._methods.end_step(batch)
        self._note_times(batch)
        return self._filtered(loss)

    def _filtered(self, loss: Tensor) -> Tensor:
        """Replaces a loss that is not finite by the mean of those before, as the Trainer does, which would wait for it.

        The wait saved is that for the norm of the gradient.
        """
        args: Any = self._trainer.args
        if not args.logging_nan_inf_filter:
            return loss
        args.logging_nan_inf_filter, self._is_unfiltered = False, True
        running_loss, _, last_logged_step = loop_losses(self._trainer)
        num_steps = 1 + self._trainer.state.global_step - last_logged_step
        return torch.where(torch.isfinite(loss), loss, running_loss / num_steps)

    def check_gradient(self, model: nn.Module, norm: Tensor | float | None) -> float | None:
        """Decides whether the optimizer step is made, by the losses and the norm of the gradient, which it returns."""
        self.release()
        if self._finished is None:  # somebody's own step, which is refused once it is made
            return None if norm is None else float(norm)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm  # of FSDP
        norm, num_unlike = read_together([self._finished], [norm, self._num_unlike])  # one wait for the device
        self._kinds.note_unlike(bool(num_unlike))
        if num_unlike and self._kinds.is_strict and not self._separation.is_by_stream(self._finished.plan):
            self._finished = replace(self._finished, measured=self._none(self._finished.plan))
        self._run.gradient_norm = norm
        self._guard.check(model, self._finished, norm)
        return norm

    def release(self) -> None:
        """Shows the Trainer its own arguments again."""
        if self._is_unfiltered:
            self._trainer.args.logging_nan_inf_filter, self._is_unfiltered = True, False

    def _train_alone(self, model: nn.Module, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Runs the micro-batches without other ranks; the step may have been split again, with other items."""
        num_items = torch.full((), self._losses.num_items_in_batch, device=self._trainer.args.device)
        return self._train_micro_batches(model, batch, num_items, is_synchronised=False)

    def _train_micro_batches(
        self, model: nn.Module, batch: StepBatch, num_items: Tensor | int | None, is_synchronised: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Runs the micro-batches; returns the sums of `MicroBatchResult.loss` and `MicroBatchResult.sums`."""
        accelerator = self._trainer.accelerator
        loss, sums = torch.zeros((), device=self._trainer.args.device), None
        gradient_state = accelerator.gradient_state
        always = gradient_state.plugin_kwargs.get("sync_each_batch", False)
        self._begin_step(model, batch)
        order = self._order(batch, is_synchronised)
        try:
            for number in order:
                micro, is_last = batch.micro_batches[number], number == order[-1]
                gradient_state._set_sync_gradients(is_last)  # noqa: SLF001 accelerate
                synchronises = is_synchronised and (always or is_last)
                trained = self._begin_micro_batch(micro, synchronises) if self._hooks else None
                with _NO_CONTEXT if synchronises else accelerator.no_sync(model=model):
                    result = self._micro.train(model, micro, number, num_items, trained)
                if trained is not None:
                    self._end_micro_batch(model, trained, result)
                loss = loss + result.loss
                sums = result.sums if sums is None else sums + result.sums
        except Exception as error:
            self._kinds.end_step(error)
            raise
        self._kinds.end_step()
        assert sums is not None, "a step has at least one micro-batch on every rank"  # noqa: S101
        return loss, sums

    def _order(self, batch: StepBatch, ends_all: bool) -> list[int]:
        """Returns the order of a step's micro-batches."""
        order = self._methods.order(batch)
        if not self._kinds.begin_step(batch, ends_all):
            return order
        return self._kinds.ordered(
            order, batch.micro_batches, sum(map(self._methods.has_priority, batch.micro_batches))
        )

    def _begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Called before the micro-batches run, again if the step is repeated."""
        self._methods.begin_step()
        if self._hooks:
            self._num_first = sum(map(self._methods.has_priority, batch.micro_batches))
        for hook in self._hooks:
            hook.begin_step(model, batch)

    def _begin_micro_batch(self, micro: MicroBatch, is_synchronised: bool) -> ForwardResult:
        """Tells the hooks of a micro-batch; returns it as they see it."""
        self._counts = self._run.step.counts
        trained = ForwardResult(self._run.step.present_plan, micro, None, self._losses.items_per_row(micro))
        for hook in self._hooks:
            hook.begin_micro_batch(trained, is_synchronised)
        return trained

    def _end_micro_batch(self, model: nn.Module, trained: ForwardResult, result: MicroBatchResult) -> None:
        """Tells the hooks of a micro-batch after its backward."""
        done = replace(trained, row_losses=result.row_losses)
        if self._run.step.counts is not self._counts:  # the forward has shown that items are others
            done = replace(done, items=self._losses.items_per_row(trained.micro))
        is_first = self._methods.has_priority(trained.micro)
        self._num_first -= is_first
        for hook in self._hooks:
            hook.end_micro_batch(model, done, is_first and self._num_first == 0)

    def _result(self, batch: StepBatch, sums: Tensor) -> StepResult:
        run, rate = self._run, self._run.learning_rate
        return StepResult(
            batch.plan,
            run.step.counts,
            sums,
            learning_rate=float("nan") if rate is None else rate.value,
            learning_rate_factor=1.0 if rate is None else rate.factor,
            item_factors=self._losses.item_factors,
            measured=self._measured(batch.plan),
        )

    def _measured(self, plan: StepPlan) -> BoolArray | None:
        """Returns the streams whose losses the step shows, bool `[num_streams]`; `None` for all."""
        is_mixed = self._run.step.counts.mixed_up[1] or not self._losses.shows_rows
        if is_mixed and not self._separation.is_by_stream(plan):
            return self._none(plan)
        return self._run.splitting.measured(plan)

    @staticmethod
    def _none(plan: StepPlan) -> BoolArray:
        return np.zeros(len(plan.counts), dtype=np.bool_)

    def _note_times(self, batch: StepBatch) -> None:
        self._times = dict(
            step=batch.plan.step,
            total=batch.plan.total,
            micro_batches=len(self._run.step.micro_items),
            load_seconds=self._train_started - self._load_started,
            train_seconds=time.perf_counter() - self._train_started,
            probe_seconds=0.0 if self._probe is None else self._probe.seconds,
            **self._load_counts,
        )

    def loss_context(self, stack: contextlib.ExitStack) -> contextlib.ExitStack:
        """Averages an auxiliary loss over a step's micro-batches; see `Trainer.compute_loss_context_manager`."""
        trainer: Any = self._trainer
        if getattr(trainer, "aux_loss_enabled", False):
            # TRL's SFTTrainer divides it by this number, which for the Trainer is the divisor of the whole loss.
            divide_by = getattr(trainer, "current_gradient_accumulation_steps", 1)
            trainer.current_gradient_accumulation_steps = max(len(self._run.step.micro_items), 1)
            stack.callback(setattr, trainer, "current_gradient_accumulation_steps", divide_by)
        return stack

    # ---- Observe and decide ----

    def close(self) -> None:
        """Closes a step after its optimizer step: policy and schedule decide, and the ledger records it."""
        run, result = self._run, self._finished
        if result is None:
            text = f"of this {type(self._trainer).__name__} was replaced during the run: do so before train(), or "
            raise wrong_type(
                "training_step", f"{text}override it. Or get_batch_samples returned another batch than super()'s."
            )
        self._finished = None
        self._methods.close_step()
        norm = run.gradient_norm
        measured: dict[Kind, Any] = {}
        for hook in self._observers:
            measured |= hook.observe(result)  # uses collectives, so errors are not deferred
            self._times["train_seconds"] += hook.seconds_after
            self._times["probe_seconds"] += hook.seconds_after
        run.ledger.record_timings(**self._times)
        kept = dict(measured)
        for kind, found in measured.items():
            if isinstance(found, np.ndarray):  # a policy may write into its arrays
                kept[kind] = found.copy()
        self._decide(result, measured)
        run.recorder.record(result, kept, norm, run.step.left_out)
        if run.learning_rate is not None:
            run.learning_rate.moved()
            run.set_learning_rate()

    def _decide(self, result: StepResult, measured: Results) -> None:
        run = self._run
        try:
            contents = result.contents
            run.mixing.observe(result.plan, contents.tokens, measured, contents.skipped, contents.labels)
        except Exception as error:
            # Raised on all ranks when they confirm the next step; raised here, it would leave the others waiting.
            run.policy_error = error
