"""A training run from its beginning to its end, whatever ends it."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging

from mixer.checkpoint.load_weights import adapters_checked, loaded_whole
from mixer.checkpoint.write_errors import explain_write_error, write_error
from mixer.ledger.progress.bar import replace_progress_bars
from mixer.loading.batching import Splitting
from mixer.loading.build import assemble
from mixer.loading.learning_rate import decay_in_words
from mixer.loading.loader import MixingLoader
from mixer.trainer.failures import reporting_to_all_ranks
from mixer.trainer.hyperparameter_search import PrunedElsewhere
from mixer.trainer.log import tell_of_merged_names
from mixer.trainer.loop import MixingCallback
from mixer.trainer.parts import Parts
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import first_of, shortened

logger = logging.get_logger(__name__)


class Training:
    """Trains on the mixture: begins a run or resumes one, and seals its records at the end.

    Args:
        parts: The parts of the trainer.
    """

    def __init__(self, parts: Parts):
        self._parts, self._trainer, self._run = parts, parts.trainer, parts.run
        self._plan, self._ranks = parts.plan, parts.ranks
        self._one_stream_each = parts.plan.one_stream_each  # on any rank, once a run has begun
        self._is_beginning = False  # whether the loop has yet to ask for the run's own loader
        self._held = contextlib.ExitStack()  # what holds until the run ends
        self._add_callbacks()

    # ---- Beginning to end ----

    def train(self, train: Callable[..., Any], requested: str | bool | None, *args: Any, **kwargs: Any) -> Any:
        """Trains; keeps the records whatever ends the run.

        Args:
            train: The Trainer's own `train`.
            requested: See `Trainer.train`, as for all further arguments.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Returns:
            The Trainer's result; `None` for a trial that rank 0 has pruned.
        """
        self._plan.config.check_unchanged(self._trainer.args)
        self._is_beginning = True
        try:
            return self._train(train, requested, *args, **kwargs)
        except PrunedElsewhere:
            return None
        except BaseException as error:
            if self._trainer.is_in_train:  # keep the records
                self._end_ledger(error)
                self._trainer.is_in_train = False
            raise
        finally:
            self._release()

    def _train(self, train: Callable[..., Any], requested: str | bool | None, *args: Any, **kwargs: Any) -> Any:
        training_args = self._trainer.args
        self._parts.agreement.begin_run()
        trial = args[0] if args else kwargs.get("trial")
        with (
            reporting_to_all_ranks(self._place, lambda: training_args.ddp_timeout),
            self._parts.arguments.held(auto_find_batch_size=False),  # otherwise the whole loop would restart
            contextlib.ExitStack() as self._held,
            adapters_checked(self._trainer.model, self._plan.config.allow_inexact),
            self._parts.start.chosen(requested, trial) as checkpoint,
            self._parts.loop.ending_by_signals(),
        ):
            said = None if checkpoint else decay_in_words(training_args, self._run.mixing.clock)
            if said is not None and training_args.process_index == 0:
                logger.warning(said)
            with _naming_shapes(checkpoint):
                result = train(checkpoint, *args, **kwargs)
            self._finish()
            return result

    def _place(self) -> str:
        """Returns the place in the run, for the error of another rank."""
        step, state = self._run.mixing.clock.step, self._trainer.state
        is_over = 0 < step == state.global_step and (
            step >= state.max_steps or self._trainer.control.should_training_stop
        )
        return f"after the last step, {step}" if is_over else f"in step {step + 1}"

    def _end_ledger(self, error: BaseException) -> None:
        run, reason = self._run, shortened(f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": "))
        for work in (run.recorder.flush, run.ledger.flush, partial(run.ledger.end, "stopped", reason)):
            # After a device error losses cannot be read, and the disk may be full.
            with contextlib.suppress(RuntimeError, OSError):
                work()

    def _release(self) -> None:
        """Releases what only the run needs."""
        self._parts.steps.release()
        for hook in self._parts.hooks:
            hook.release()
        self._parts.losses.stop_reading()
        if self._run.loader is not None:
            self._run.loader.stop()

    def _finish(self) -> None:
        """Seals the records when the loop has ended without an error."""
        run = self._run
        self._raise_method_error()
        if run.policy_error is not None:  # its decision would apply to no step
            logger.warning("The policy failed after the last step: %r", run.policy_error)
        run.recorder.flush()
        if self._parts.loop.stopped_by is None:  # otherwise the resumed run would have rows without a log entry
            self._parts.steps.end()
            self._parts.methods.note_memories()
            for method in self._parts.methods:
                method.end_training()
        self._ranks.run_on_all(self._seal_ledger)

    def _seal_ledger(self) -> None:
        ledger, stopped_by = self._run.ledger, self._parts.loop.stopped_by
        try:
            ledger.finish()
        except OSError as error:
            folder = Path(str(self._trainer.args.output_dir))
            raise write_error("The end of the ledger", error, folder) from error
        if stopped_by is not None:
            ledger.end("stopped", stopped_by.name)
            return
        ledger.end("finished")
        self._parts.checkpoints.note_end()

    # ---- The weights of a checkpoint ----

    def complete_loading(self, result: Any) -> Any:
        """Completes the loading of weights from a checkpoint, or of the best model; see `loaded_whole`."""
        trainer: Any = self._trainer
        checkpoint = self._parts.start.checkpoint if self._is_beginning else trainer.state.best_model_checkpoint
        return loaded_whole(trainer.model, result, Path(str(checkpoint)), self._plan.config.allow_inexact)

    # ---- The loader, whose first request begins the run ----

    def new_loader(self) -> MixingLoader:
        """Makes the loader of the run; outside of a run, one to look at, which does not move the run's streams."""
        run = self._run
        is_run, self._is_beginning = self._is_beginning and self._trainer.is_in_train, False
        if is_run:  # the loop's first act
            self._begin()
        rows_from = None if self._parts.start.checkpoint is None else Path(self._parts.start.checkpoint)
        mixing = run.mixing if is_run else run.mixing.preview_copy()
        feed = self._parts.loading.new_feed(mixing, rows_from, self._plan.config.allow_inexact)
        loader = self._parts.loading.new_loader(
            *(mixing, feed), splitting=(lambda: run.splitting) if is_run else (lambda: splitting), is_preview=not is_run
        )
        splitting = Splitting(
            loader.configured_cap,
            by_stream=self._one_stream_each,
            keeps_samples=self._plan.keeps_samples or self._parts.agreement.is_on,
        )
        if is_run:
            run.loader, run.feed, run.splitting = loader, feed, splitting
            if self._parts.agreement.is_on:
                run.splitting = replace(splitting, cap=self._parts.resuming.lowered(splitting.cap))
        return loader

    def _begin(self) -> None:
        """Begins a run, or resumes one."""
        args = self._trainer.args
        self._parts.loop.begin_run()
        # Callbacks, evaluation and checkpoints see the user's value.
        self._held.enter_context(self._parts.arguments.held(auto_find_batch_size=self._parts.agreement.is_on))
        self._parts.search.begin_run()
        # The first samples of one rank decide for all ranks.
        self._one_stream_each = bool(self._ranks.max_over_ranks(int(self._one_stream_each)))
        new_parts = partial(
            assemble,
            *(args, self._plan.streams, self._parts.mixture),
            scheduler=self._trainer.lr_scheduler,
            lengths=self._parts.loading.lengths(),
        )
        self._parts.resuming.begin(new_parts, self._parts.describe)
        self._parts.steps.begin_run()
        self._parts.resuming.restore_losses(self._parts.losses)
        if self._parts.start.checkpoint is not None:  # only at the start
            self._held.enter_context(self._parts.arguments.held(eval_on_start=False))

    # ---- The callbacks of a run ----

    def _add_callbacks(self) -> None:
        """Adds the callback that closes steps, before all others, and connects bars."""
        callbacks = self._trainer.callback_handler.callbacks
        style, sets = self._plan.config.logging_style, self._evaluation_sets
        replace_progress_bars(callbacks, lambda: self._run.mixing, style, sets)
        tell_of_merged_names(self._run.mixing.names, self._trainer.args.report_to)
        steps, loop, handler = self._parts.steps, self._parts.loop, self._trainer.callback_handler
        callbacks.insert(0, MixingCallback(self._start, steps.close, loop.clear_epoch_stop, self._run, handler))

    def _evaluation_sets(self) -> Collection[str]:
        sets: Any = self._trainer.eval_dataset
        return sets if isinstance(sets, dict) else ()

    def _start(self) -> None:
        """Called before the first step: the model is wrapped, the optimizer and the schedule exist."""
        self._parts.methods.check_attached()
        for hook in self._parts.hooks:
            hook.prepare(self._trainer.model_wrapped)
        self._parts.loop.prepare()
        self._parts.agreement.prepare()
        self._held.enter_context(self._parts.steps.replacing_training_step())

    def after_step(self, act: Callable[..., None], tr_loss: Any, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        """Logs, saves and evaluates after a step; see `Trainer._maybe_log_save_evaluate`."""

        def log_save_evaluate() -> None:
            self._parts.checkpoints.note_step(grad_norm, kwargs.get("learning_rate"))
            if self._trainer.control.should_log:
                with self._parts.log.adding_entries():
                    act(tr_loss, grad_norm, *args, **kwargs)
            else:
                act(tr_loss, grad_norm, *args, **kwargs)

        model, trial = args[:2]
        self._parts.loop.after_step(log_save_evaluate, model, trial)

    def check_decisions(self) -> None:
        """Ends all ranks if a policy or a method failed on one of them: a checkpoint would lack a decision."""
        run, state = self._run, self._trainer.state
        if state.global_step < state.max_steps:
            error = run.policy_error
            if self._ranks.max_over_ranks(int(error is not None)):
                self._ranks.raise_on_all(error)
        self._raise_method_error()

    def _raise_method_error(self) -> None:
        """Raises on all ranks if a method failed on one of them after the last step."""
        error = explain_write_error(self._run.method_error, Path(str(self._trainer.args.output_dir)))
        if len(self._parts.methods) and self._ranks.max_over_ranks(int(error is not None)):
            self._ranks.raise_on_all(error)


@contextlib.contextmanager
def _naming_shapes(checkpoint: str | None) -> Iterator[None]:
    """Refuses a checkpoint whose weights have other shapes than the model's, in place of torch's own error."""
    try:
        yield
    except RuntimeError as error:
        shapes = [line.strip() for line in str(error).splitlines() if "size mismatch for" in line]
        if checkpoint is None or not shapes:
            raise
        hint = (
            "Resume with the model's configuration as it was (model.config, vocab_size), or start a new run elsewhere."
        )
        raise InvalidValueError(
            f"resume_from_checkpoint: the weights in {checkpoint!r} have other shapes than the model's: "
            f"{'; '.join(first_of(shapes, 2))} {hint}",
            option="resume_from_checkpoint",
            found=checkpoint,
            hint=hint,
        ) from None
