"""The Trainer on a mixture of streams."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from mixer.distributed.collectives import RankSync
from mixer.ledger.description import describe_run
from mixer.ledger.evaluated_losses import check_eval_weights
from mixer.ledger.ledger import Ledger
from mixer.ledger.progress.bar import take_bars
from mixer.ledger.recorder import Recorder
from mixer.ledger.trackers.reporting import Reporting
from mixer.loading.build import MixtureOptions, assemble, resolve_budget, resolve_policy
from mixer.loading.result import StepResult
from mixer.mixture.bad_samples import OnSampleError
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing, check_format
from mixer.mixture.groups import Grouping
from mixer.mixture.planner import Drawing, Planner
from mixer.mixture.resolve import (
    check_evaluation_names,
    check_gradient_noise,
    check_max_tokens,
    check_metrics,
    check_needs,
    check_own_weights,
    check_samples,
    check_schedule,
    warn_of_forwards,
)
from mixer.mixture.stream import Stream, as_streams, describe, skipping_of
from mixer.models.trl import keeps_metrics
from mixer.policies.contract import Policy
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.schedules.base import Schedule
from mixer.schedules.registry import as_schedule
from mixer.trainer.checkpointing.choose import write_error
from mixer.trainer.checkpointing.files import annotate, read_state
from mixer.trainer.checkpointing.resume import ResumingMixin
from mixer.trainer.checkpointing.save import Progress
from mixer.trainer.checks import (
    check_arguments,
    check_budget,
    check_compute_loss,
    check_create_optimizer,
    check_order,
    check_trainer_is_supported,
)
from mixer.trainer.engines import EngineRequest, check_engine
from mixer.trainer.evaluation import EvaluatingMixin, check_best_metric
from mixer.trainer.failures import made_among_others
from mixer.trainer.gradient_aggregation import check_conflict, with_conflict
from mixer.trainer.hooks import StepHook
from mixer.trainer.loop import MixingCallback
from mixer.trainer.method import Method
from mixer.trainer.observers.gradient_options import Probing, check_exact, exact_refusal, resolve_probing
from mixer.trainer.observers.gradients import NoiseBetweenRanks, RunProbe, StepLength
from mixer.trainer.observers.reference import ExcessLoss, LossesAfter, ReferenceModel, compared_in, needed_reference
from mixer.trainer.out_of_memory import RecoveryMixin
from mixer.trainer.search import SearchingMixin
from mixer.trainer.side_runs import SideRuns
from mixer.trainer.step import NonFinite, StepMixin
from mixer.trainer.trl import PreparingMixin, TRLMetrics, with_fused_head
from mixer.utils.text import shortened

logger = logging.get_logger(__name__)

# With more streams than this, the Trainer's history, which every checkpoint contains in full, has no entries per
# stream.
MOST_STREAMS_IN_HISTORY = 256


class MixingMixin(PreparingMixin, EvaluatingMixin, SearchingMixin, RecoveryMixin, ResumingMixin):
    """Makes a Trainer, or a subclass of it, train on a mixture of streams.

    `class MyTrainer(MixingMixin, SomeTrainer)` is all it takes. With one data set it trains as the Trainer does.
    Trainers that make their own batches are refused; TRL's trainers for SFT, DPO and reward models are supported.

    Args:
        model: As for the Trainer.
        args: As for the Trainer. `gradient_accumulation_steps` multiplies the default batch size; a step is always one
            optimizer step.
        data_collator: As for the Trainer.
        train_dataset: A mapping of names to data sets (or a `DatasetDict`), a list of `Stream`, or one data set.
        *positional: Further arguments of the Trainer class.
        mixing: The mixture weights: a policy, its name, weights by name or in order, or `f(step, weights) -> weights`.
            `None` uses the streams' own weights, or mixes in proportion to size if they have none.
        batch_size: Samples per step over all ranks: a number, a schedule, its name, or `f(step, batch_size) ->
            batch_size`. `None` uses `per_device_train_batch_size` × `gradient_accumulation_steps` × ranks.
            Micro-batches hold at most `per_device_train_batch_size` samples, whatever the batch size.
        budget: Length of the run in epochs, samples, tokens or steps, instead of `num_train_epochs`; `max_steps` still
            ends a run. `None` uses these two as the Trainer does.
        epoch_size: Samples in an epoch of the mixture; `None` uses the sum over all streams.
        groupings: Groups of streams with weights and caps of their own.
        drawing: `"exact"` gives every stream its share to the sample, `"multinomial"` draws the counts at random.
        max_tokens_per_micro_batch: Maximum number of tokens in a micro-batch, padding included, instead of
            `per_device_train_batch_size` samples. Works best with `train_sampling_strategy="group_by_length"`, which
            puts samples of similar length of a step into the same micro-batch.
        probe: Options for measuring per-stream gradients, for a policy or schedule that needs them, or for the ledger.
        reference_model: A trained model, for a policy that compares the losses of both models on the same samples
            (`"excess_loss"`). It runs in evaluation mode on every micro-batch and is never changed.
        methods: Methods that take part in steps, such as a loss term or a rule for the gradient; see
            `mixer.trainer.method.Method`. Replay buffers among the streams are added automatically.
        conflict: How conflicting per-stream gradients are combined: `None` adds them up; `"pcgrad"`, `"cagrad"`,
            `"mgda"`, `"nash-mtl"`, `"upgrad"`, an aggregator of the package torchjd, or a `GradientAggregation` weights
            them. Needs memory for one more gradient per stream but one.
        nonfinite: Reaction to a stream's loss that is not finite: `"warn"` and continue as the Trainer does, `"skip"`
            the optimizer step, or `"raise"`.
        on_sample_error: Reaction to a sample that cannot be loaded (its data set or the stream's `preprocess` raises,
            or returns `None`): `"raise"` ends the run on all ranks, with stream, index and rank; `"skip"` leaves the
            sample out of its step, logs and counts it. A `Stream` can override it.
        max_skipped_share: Ends the run once more than this share of a stream's samples, and at least ten of them, are
            skipped.
        allow_inexact: Whether to resume even if the continuation differs from that of the uninterrupted run: with a
            stream added or removed, another policy or `conflict`, changed data. Otherwise such a resume is refused.
        handle_signals: Whether `train` saves a checkpoint and ends after the step in progress, on all ranks, if any
            rank receives a SIGTERM, SIGINT or SIGUSR1 that nothing else handles. Handlers are installed only during
            `train`, in the main thread.
        compute_metrics: As for the Trainer; or a dict with one function per evaluation set.
        eval_weights: Weights of the evaluation sets in `eval_loss`, by name; `None` uses the plain mean.
        **kwargs: Further arguments of the Trainer class.

    Raises:
        ValueError: If streams, weights, batch size or training arguments are incompatible; the message names the
            alternatives.
        TypeError: If an argument is of the wrong type, or a class below makes its own batches.

    Example:
        >>> trainer = MixingTrainer(  # doctest: +SKIP
        ...     model=model, args=args, train_dataset={"math": math, "code": code}, mixing={"math": 2, "code": 1}
        ... )
    """

    _run_probe: RunProbe | None = None  # the hook that measures the streams' gradients
    recipe_text: str | None = None  # the recipe it was built from, for experiment trackers
    _entries: Mapping[str, float] = {}  # entries of the mixture in the log entry that is being made

    @made_among_others
    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        *positional: Any,
        mixing: Policy | str | Mapping[str, float] | Sequence[float] | Callable[..., Any] | None = None,
        batch_size: Schedule | str | int | Callable[[int, int], int] | None = None,
        budget: Budget | None = None,
        epoch_size: int | None = None,
        groupings: Sequence[Grouping] = (),
        drawing: Drawing = "exact",
        max_tokens_per_micro_batch: int | None = None,
        probe: Probing | None = None,
        reference_model: nn.Module | None = None,
        methods: Sequence[Method] = (),
        conflict: Any = None,
        nonfinite: NonFinite = "warn",
        on_sample_error: OnSampleError = "raise",
        max_skipped_share: float = 0.1,
        allow_inexact: bool = False,
        handle_signals: bool = True,
        compute_metrics: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
        eval_weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ):
        if nonfinite not in ("warn", "skip", "raise"):
            raise ValueError(f"nonfinite must be 'warn', 'skip' or 'raise', got {nonfinite!r}.")
        check_max_tokens(max_tokens_per_micro_batch)
        check_trainer_is_supported(type(self), StepMixin)
        check_compute_loss(type(self))
        check_create_optimizer(type(self))
        knows_names = check_order(type(self), StepMixin, args, positional)
        self.streams: list[Stream] = [] if train_dataset is None else as_streams(train_dataset)
        if isinstance(compute_metrics, Mapping):
            self._metrics_by_set = compute_metrics
        elif compute_metrics is not None:
            kwargs["compute_metrics"] = compute_metrics
        stand_in = self._stand_for_streams(_length_of_epoch(self.streams, epoch_size, budget))
        if positional or not knows_names:
            super().__init__(model, args, data_collator, stand_in, *positional, **kwargs)
        else:  # other trainers have another order
            super().__init__(model=model, args=args, data_collator=data_collator, train_dataset=stand_in, **kwargs)
        self._take_stand_in_back()
        if self._metrics_by_set is not None:
            check_metrics(self._metrics_by_set, self.eval_dataset)
        check_eval_weights(eval_weights, self.eval_dataset)
        self._policy = resolve_policy(mixing, self.streams)
        schedule, seed = as_schedule(batch_size), self._data_seed
        self._mixture = MixtureOptions(schedule, budget, epoch_size, tuple(groupings), drawing, seed, eval_weights)
        self._nonfinite = nonfinite
        self._skipping = skipping_of(self.streams, on_sample_error, max_skipped_share)
        self._max_tokens = max_tokens_per_micro_batch
        self._allow_inexact, self._handles_signals = allow_inexact, handle_signals
        self.ledger = Ledger(Path(str(self.args.output_dir)) / "ledger", is_writer=self.is_world_process_zero())
        if self.streams:
            self._set_up_mixture(probe, reference_model, methods, conflict)
            self._add_callbacks()

    # ---- Setting up a run ----

    def _set_up_mixture(
        self, probe: Probing | None, reference_model: nn.Module | None, methods: Sequence[Method], conflict: Any
    ) -> None:
        self._check_options()
        self._take_specifics()
        reference = with_fused_head(needed_reference(reference_model, self.model, self._policy), self.model)
        self._keeps_items = reference is not None
        planner, clock, size = self._new_parts(None)
        check_samples(self._policy, len(self.streams), size.value)
        self._run_probe = self._new_probe(probe, size)
        self._mixing = Mixing(planner, self._policy, clock, size)
        check_own_weights(self._policy, describe(self.streams), self._mixing.weights)
        self._rank_sync = RankSync(self.args.world_size, self.args.ddp_timeout_delta)
        self._recorder = self._new_recorder(self._mixing)
        self._observers = self._new_observers(reference)
        self._attach_methods(with_conflict(methods, conflict))
        check_conflict(self, self._mixture.schedule, self._methods)
        self._check_engine()
        if self._wants_one_stream_each or self._mixing.weighs_losses:
            warn_of_forwards(len(self.streams), size.value, self.args)

    def _new_probe(self, options: Probing | None, size: BatchSize) -> RunProbe | None:
        world_size = self.args.world_size
        if (resolved := resolve_probing(options, self._policy, size.schedule, world_size)) is None:
            return None
        check_exact(resolved[0], self.args, size, self._max_tokens, self._policy, self.streams)
        if resolved[0].needs_one_micro_batch and self._wants_one_stream_each and len(self.streams) > 1:
            raise exact_refusal("streams that differ have micro-batches of their own")
        names = [stream.name for stream in self.streams]
        probe = RunProbe(*resolved, names, world_size, self.args.seed, SideRuns(self))
        probe.check(self._own_model)
        self._wants_one_stream_each |= probe.options.homogeneous
        return probe

    def _new_observers(self, reference: nn.Module | None) -> tuple[StepHook, ...]:
        """Makes the hooks that measure what policy, schedule and metrics need."""
        args, runs, dtype, rank_sync = self.args, SideRuns(self), self._sum_dtype, self._rank_sync
        hooks: list[StepHook] = [] if self._run_probe is None else [self._run_probe]
        if args.world_size > 1 and "gradient_noise" in self._mixture.schedule.needs:
            hooks.append(NoiseBetweenRanks(runs, rank_sync, args.world_size, args.device))
        if "update_norm" in self._policy.needs:
            hooks.append(StepLength())
        if reference is not None:
            autocast, new_tracker = self.accelerator.autocast, self._new_tracker
            new = partial(ReferenceModel, runs=runs, device=args.device, autocast=autocast, new_tracker=new_tracker)
            hooks.append(ExcessLoss(reference, len(self.streams), rank_sync, new, dtype))
        if "loss_after" in self._policy.needs:
            hooks.append(LossesAfter(runs, rank_sync, self._was_skipped, args.device, dtype))
        if keeps_metrics(self):
            hooks.append(TRLMetrics(self, lambda: int(self._step_counts.tokens.sum())))
        return tuple(hooks)

    def _measured(self) -> tuple[GradientStatistics | None, float]:
        probe = self._run_probe
        return (None, 0.0) if probe is None else (probe.statistics, probe.seconds)

    def _was_skipped(self, result: StepResult) -> bool:
        is_left_out = self._nonfinite == "skip" and len(result.bad_streams()) > 0
        return is_left_out or bool(self.accelerator.optimizer_step_was_skipped)

    def _add_callbacks(self) -> None:
        handler = self.callback_handler
        take_bars(handler.callbacks, lambda: self.mixing)
        self._reporting = Reporting(self, self._settle_ledger)
        self._reporting.hook()
        own = MixingCallback(self._start_loop, self._close_step, self._take_stop_back, self.mixing, handler)
        handler.callbacks.insert(0, own)

    def _start_loop(self) -> None:
        self._prepare_run()
        self._take_up_progress()

    def _check_options(self) -> None:
        schedule = self._mixture.schedule
        check_arguments(self, self.streams, schedule, self._max_tokens)
        check_budget(self.args, resolve_budget(self.args, self._mixture.budget))
        check_needs(self._policy, self.streams, self.args, self.eval_dataset)
        check_schedule(self._mixture.schedule, self.lr_scheduler)
        check_gradient_noise(self, schedule)
        check_evaluation_names(self.eval_dataset)
        check_best_metric(self)
        check_conflict(self, schedule, self._methods)

    def _check_engine(self) -> None:
        schedule, budget = self._mixture.schedule, resolve_budget(self.args, self._mixture.budget)
        check_engine(
            self,
            EngineRequest(
                policy=self._policy,
                schedule=schedule,
                methods=self._methods,
                streams=self.streams,
                probes=self._run_probe is not None,
                skips=self._nonfinite == "skip",
                has_heads=len(set(self._tasks)) > 1,
                is_cut_by_tokens=self._max_tokens is not None,
                counts_steps=schedule.is_constant and budget.is_in_steps,
            ),
        )

    def _new_parts(self, saved_batch_size: int | None) -> tuple[Planner, Clock, BatchSize]:
        return assemble(self.args, self.streams, self._mixture, saved_batch_size)

    def _new_recorder(self, mixing: Mixing) -> Recorder:
        reads_at_once = self.args.device.type == "cpu" or "loss" in self._policy.needs | self._mixture.schedule.needs
        return Recorder(mixing, self.ledger, reads_at_once)

    def _begin_run(self) -> None:
        super()._begin_run()
        mixing, progress, resume_from = self.mixing, None, self._resumed_checkpoint
        # The seed of the arguments may have changed since construction.
        self._mixture = replace(self._mixture, seed=self._data_seed)
        if self._run_probe is not None:
            self._run_probe.seed = self.args.seed
        # The first samples of one rank decide for all ranks.
        self._wants_one_stream_each = bool(self._rank_sync.most(int(self._wants_one_stream_each)))
        if resume_from is None:
            mixing.restart(*self._new_parts(None))
        else:
            self._load_methods(resume_from)
            progress = self._resume(mixing, resume_from)
        resume_step = None if progress is None else mixing.clock.step
        names = {"streams": list(mixing.names), "policy": self._policy.name, "batch_size": self._mixture.schedule.name}
        description = {**names, "run": self.describe_run()}
        self._rank_sync.run_on_all(partial(self._begin_progress, progress))
        self._rank_sync.run_on_all(partial(self._begin_ledger, resume_step, description))
        self._recorder = self._new_recorder(mixing)
        if resume_step is None:
            self._recorder.record_start()
        self._load_log_state({} if progress is None else progress.methods)
        self._normalizations, self._finished, self._policy_error, self._method_error = {}, None, None, None
        self._step_told_broken, self._num_told_broken = -1, 0
        self._rows_from = None if resume_from is None else Path(resume_from)
        self._detach_tracker()
        self._reporting.hook()  # callbacks may have been added
        if progress is not None:  # only at the start
            self._held.enter_context(self._arguments_held(eval_on_start=False))

    def _resume(self, mixing: Mixing, checkpoint: str) -> Progress:
        state, manual, manual_size = read_state(Path(checkpoint)), mixing.manual_weights, mixing.manual_batch_size
        try:
            check_format(state)
            batch_size, progress = int(state["clock"]["initial_batch_size"]), Progress.from_state(state["progress"])
            mixing.restart(*self._new_parts(batch_size))
            try:
                self._check_method_settings(state)
                mixing.load_state_dict(state)
            except ValueError as error:
                if not self._allow_inexact:
                    raise ValueError(f"{_sentence(error)} To resume anyway, set allow_inexact=True") from None
                logger.warning("Resumed inexactly: %s", _sentence(error))
                mixing.restart(*self._new_parts(batch_size))
                mixing.load_state_dict(state, allow_inexact=True)
                progress = replace(progress, recorder={}, methods={})
        except (KeyError, TypeError) as error:
            raise ValueError(f"Cannot resume the mixture from {checkpoint}: its state lacks {error}.") from None
        except ValueError as error:
            raise ValueError(f"Cannot resume the mixture from {checkpoint}: {_sentence(error)}") from None
        if manual is not None:  # set by the user before this run: overrides the saved weights
            mixing.set_weights(manual)
        if manual_size is not None:
            mixing.set_batch_size(manual_size)
        return progress

    def describe_run(self) -> dict[str, Any]:
        """Describes the mixture of the run as plain data: the entry `run` of `ledger.json`."""
        methods = [method.name for method in self._methods]
        return describe_run(self.streams, self.mixing, self._mixture, self.args.world_size, methods)

    # ---- The loop ----

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains on the mixture; see `Trainer.train`."""
        self._check_train_dataset()
        self._is_beginning = True
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        except BaseException as error:
            if self.is_in_train:  # keep the records
                self._end_ledger(error)
                self.is_in_train = False
            raise
        finally:
            self._release_run()

    def _end_ledger(self, error: BaseException) -> None:
        reason = shortened(f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": "))
        for work in (self._recorder.settle, self.ledger.flush, partial(self.ledger.end, "stopped", reason)):
            # After a device error losses cannot be read, and the disk may be full.
            with contextlib.suppress(RuntimeError, OSError):
                work()

    def _finish_run(self) -> None:
        self._raise_method_error()
        if self._policy_error is not None:  # its decision would apply to no step
            logger.warning("The policy failed after the last step: %r", self._policy_error)
        self._recorder.settle()
        if self._stopped_by is None:  # otherwise the resumed run would have rows without a log entry
            self.note_memories()
        self._rank_sync.run_on_all(self._seal_ledger)

    def _seal_ledger(self) -> None:
        try:
            self.ledger.finish()
        except OSError as error:
            raise write_error("The end of the ledger", error, Path(str(self.args.output_dir))) from error
        if self._stopped_by is None:
            self.ledger.end("finished")
            if self.args.should_save and self._last_checkpoint is not None:
                with contextlib.suppress(FileNotFoundError):
                    annotate(self._last_checkpoint, ended=True)
        else:
            self.ledger.end("stopped", self._stopped_by.name)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Ends all ranks if a policy failed on one of them: the state would lack a decision."""
        if self.state.global_step < self.state.max_steps:
            error = self._policy_error
            if self._rank_sync.most(int(error is not None)):
                self._rank_sync.raise_on_all(error)
        super()._save_checkpoint(*args, **kwargs)

    def _settle_ledger(self) -> None:
        self._recorder.settle()
        self.ledger.flush()

    def _close_step(self) -> None:
        if (batch := self._finished) is None:
            raise self._refused_step()
        self._finished = None
        self._close_methods()
        is_seen = np.isfinite(batch.losses) if "loss" in self._policy.needs else False
        losses = np.where(is_seen, batch.losses, np.nan)
        observed = self._observed_by_schedule(batch)
        for hook in self._hooks:
            observed |= hook.observe(batch)  # uses collectives, so errors are not deferred
        compared = compared_in(observed)
        try:
            self.mixing.observe(
                batch.plan,
                losses,
                batch.contents.tokens,
                gradients=batch.gradients,
                skipped=batch.contents.skipped,
                **observed,
            )
        except Exception as error:
            # Raised on all ranks when they confirm the next step; raised here, it would leave the others waiting.
            self._policy_error = error
        self._recorder.record(batch, compared, self._gradient_norm, observed.get("update_norm", math.nan))
        if self._learning_rate is not None:
            self._learning_rate.moved()
            self._set_learning_rate()
        self._show_place()

    def _observed_by_schedule(self, batch: StepResult) -> dict[str, Any]:
        """Measures only what the batch-size schedule needs: reading from a GPU waits for it."""
        needs, norm, rate = self._mixture.schedule.needs, self._gradient_norm, self._learning_rate
        observed: dict[str, Any] = {}
        if "loss" in needs:
            observed["loss"] = float(batch.loss_sums[-1])
        if "gradient_norm" in needs and norm is not None:
            observed["gradient_norm"] = float(norm)
        if "learning_rate" in needs and rate is not None:
            observed["learning_rate"] = rate.at
        return observed

    # ---- Logs, evaluation, checkpoints ----

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Adds the entries of the streams to the loop's log entry before any override of `log` sees it."""
        log, own = self.log, vars(self).get("log")

        def log_with_entries(logs: dict[str, float], start_time: float | None = None) -> None:
            if "loss" in logs and not self._entries:
                self._entries = self._recorder.log_entries() | self._method_entries()
                logs.update(self._entries)
            log(logs, start_time)

        self.log = log_with_entries  # type: ignore[method-assign]  # the Trainer has no hook before log()
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)
        finally:
            self._entries = {}
            del self.log
            if own is not None:
                self.log = own  # type: ignore[method-assign]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, with the entries of the streams in the loop's own entry; see `Trainer.log`.

        Callbacks and trackers get all entries. With more than 256 streams, `state.log_history` leaves out the entries
        of single streams; the ledger has them.
        """
        entries = {entry: value for entry, value in self._entries.items() if entry in logs}
        if self._mixing is not None:
            self._reporting.note(entries)
        place = len(self.state.log_history)
        super().log(logs, start_time if start_time is None or self._mixing is None else self._start_time)
        if len(self.streams) > MOST_STREAMS_IN_HISTORY:
            names, history = frozenset(self.mixing.names), self.state.log_history
            of_streams = {entry for entry in entries if entry.partition("/")[2] in names}
            history[place] = {entry: value for entry, value in history[place].items() if entry not in of_streams}


class MixingTrainer(MixingMixin, Trainer):
    """The Trainer on a mixture of streams; see `MixingMixin`."""


def _sentence(error: Exception) -> str:
    return f"{str(error).rstrip('.')}."


def _length_of_epoch(streams: Sequence[Stream], epoch_size: int | None, budget: Budget | None) -> int | None:
    """Returns the length to show to the Trainer, which asks for `max_steps` if the data have none."""
    if epoch_size is None and budget is not None and not any(stream.num_samples for stream in streams):
        return budget.samples or 1
    return epoch_size
