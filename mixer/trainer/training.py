"""A training run from its beginning to its end, whatever ends it."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.utils import logging

from mixer.ledger.description import describe_run
from mixer.ledger.ledger import Ledger
from mixer.ledger.progress.bar import take_bars
from mixer.ledger.recorder import Recorder
from mixer.ledger.trackers.reporting import Reporting
from mixer.loading.build import assemble
from mixer.loading.loader import MixingLoader
from mixer.mixture.controller import Mixing
from mixer.trainer.checkpointing.choose import write_error
from mixer.trainer.checkpointing.files import annotate
from mixer.trainer.checkpointing.resume import Resuming
from mixer.trainer.checkpointing.save import Checkpointing, HeldArguments
from mixer.trainer.confirmation import explained
from mixer.trainer.failures import among_others
from mixer.trainer.loading import StreamLoading
from mixer.trainer.log import StreamLog
from mixer.trainer.loop import LoopControl, MixingCallback
from mixer.trainer.losses import StreamLosses
from mixer.trainer.methods import MethodList
from mixer.trainer.observers.gradients import RunProbe
from mixer.trainer.out_of_memory import Recovery
from mixer.trainer.run import Run
from mixer.trainer.search import PrunedElsewhere, Search
from mixer.trainer.side_runs import SideRuns
from mixer.trainer.step import StepRunner
from mixer.trainer.streams_that_differ import StreamDifferences
from mixer.utils.text import shortened

logger = logging.get_logger(__name__)


@dataclass
class Training:
    """Trains on the mixture: begins a run or resumes one, and seals its records at the end.

    Args:
        trainer: The trainer.
        run: The run.
        steps: Runs its steps.
        losses: The losses of the streams.
        loading: Makes loaders.
        differences: How the streams differ.
        methods: The methods of the run.
        recovery: Repeats what does not fit into memory.
        arguments: The training arguments.
        checkpoints: Writes checkpoints.
        loop: The Trainer's loop.
        resuming: Continues from checkpoints.
        search: The hyperparameter search.
        reporting: Reports to trackers.
        log: Adds the streams' entries to the log.
        side_runs: Runs the model outside of training.
        probe: The hook that measures the streams' gradients, if there is one.
    """

    trainer: Trainer
    run: Run
    steps: StepRunner
    losses: StreamLosses
    loading: StreamLoading
    differences: StreamDifferences
    methods: MethodList
    recovery: Recovery
    arguments: HeldArguments
    checkpoints: Checkpointing
    loop: LoopControl
    resuming: Resuming
    search: Search
    reporting: Reporting
    log: StreamLog
    side_runs: SideRuns
    probe: RunProbe | None

    def __post_init__(self) -> None:
        self._is_beginning = False  # whether the loop has yet to ask for the run's own loader
        self._held = contextlib.ExitStack()  # what holds until the run ends

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
        self._is_beginning = True
        try:
            return self._train(train, requested, *args, **kwargs)
        except PrunedElsewhere:
            return None
        except BaseException as error:
            if self.trainer.is_in_train:  # keep the records
                self._end_ledger(error)
                self.trainer.is_in_train = False
            raise
        finally:
            self._release()

    def _train(self, train: Callable[..., Any], requested: str | bool | None, *args: Any, **kwargs: Any) -> Any:
        training_args, mixing = self.trainer.args, self.run.mixing
        self.run.needs.recovers = bool(training_args.auto_find_batch_size)
        trial = args[0] if args else kwargs.get("trial")
        with (
            among_others(lambda: f"in step {mixing.clock.step + 1}", lambda: training_args.ddp_timeout),
            self.arguments.held(auto_find_batch_size=False),  # otherwise the whole loop would restart
            contextlib.ExitStack() as self._held,
            self.resuming.chosen(requested, trial) as checkpoint,
        ):
            return self.loop.run(partial(train, checkpoint, *args, **kwargs), self._finish)

    def _end_ledger(self, error: BaseException) -> None:
        run, reason = self.run, shortened(f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": "))
        for work in (run.recorder.settle, run.ledger.flush, partial(run.ledger.end, "stopped", reason)):
            # After a device error losses cannot be read, and the disk may be full.
            with contextlib.suppress(RuntimeError, OSError):
                work()

    def _release(self) -> None:
        """Releases what only the run needs."""
        for hook in self.run.hooks:
            hook.release()
        self.losses.stop_reading()
        if self.run.loader is not None:
            self.run.loader.stop()

    def _finish(self) -> None:
        """Seals the records when the loop has ended without an error."""
        run = self.run
        self._raise_method_error()
        if run.policy_error is not None:  # its decision would apply to no step
            logger.warning("The policy failed after the last step: %r", run.policy_error)
        run.recorder.settle()
        if self.loop.stopped_by is None:  # otherwise the resumed run would have rows without a log entry
            self.methods.note_memories()
        run.rank_sync.run_on_all(self._seal_ledger)

    def _seal_ledger(self) -> None:
        ledger, stopped_by = self.run.ledger, self.loop.stopped_by
        try:
            ledger.finish()
        except OSError as error:
            folder = Path(str(self.trainer.args.output_dir))
            raise write_error("The end of the ledger", error, folder) from error
        if stopped_by is not None:
            ledger.end("stopped", stopped_by.name)
            return
        ledger.end("finished")
        if self.trainer.args.should_save and self.checkpoints.last is not None:
            with contextlib.suppress(FileNotFoundError):
                annotate(self.checkpoints.last, ended=True)

    # ---- The loader, whose first request begins the run ----

    def new_loader(self) -> MixingLoader:
        """Makes the loader of the run; outside of a run, one to look at, which does not move the run's streams."""
        run = self.run
        is_run, self._is_beginning = self._is_beginning and self.trainer.is_in_train, False
        if is_run:  # the loop's first act
            self._begin()
        rows_from = None if self.resuming.checkpoint is None else Path(self.resuming.checkpoint)
        mixing = run.mixing if is_run else run.mixing.aside()
        feed = self.loading.new_feed(mixing, rows_from, run.allow_inexact)
        loader = self.loading.new_loader(mixing, feed, self.differences.specifics, run.needs)
        loader.is_looked_at = not is_run
        if is_run:
            run.loader, run.feed = loader, feed
            self.resuming.take_up_cap()
        return loader

    def _begin(self) -> None:
        """Begins a run, or resumes one."""
        run, args = self.run, self.trainer.args
        self.loop.begin()
        # Callbacks, evaluation and checkpoints see the user's value.
        self._held.enter_context(self.arguments.held(auto_find_batch_size=run.needs.recovers))
        self.search.begin()
        # The seeds of the arguments may have changed since construction.
        run.mixture = replace(run.mixture, seed=self.loading.seed)
        if self.probe is not None:
            self.probe.seed = args.seed
        # The first samples of one rank decide for all ranks.
        run.needs.one_stream_each = bool(run.rank_sync.most(int(run.needs.one_stream_each)))
        progress, new_parts = None, partial(assemble, args, run.streams, run.mixture)
        if self.resuming.checkpoint is None:
            run.mixing.restart(*new_parts(None))
        else:
            progress = self.resuming.restored(self.methods, new_parts)
        run.rank_sync.run_on_all(partial(self.resuming.begin, progress))
        names = {"streams": list(run.mixing.names), "policy": run.policy.name, "batch_size": run.mixture.schedule.name}
        run.rank_sync.run_on_all(partial(self.resuming.begin_ledger, {**names, "run": self.describe()}))
        needs = run.policy.needs | run.mixture.schedule.needs
        run.recorder = new_recorder(self.trainer, run.mixing, run.ledger, needs)
        if progress is None:
            run.recorder.record_start()
        self.methods.load_log_state({} if progress is None else progress.methods)
        self.steps.begin()
        self.reporting.hook()  # callbacks may have been added
        if progress is not None:  # only at the start
            self._held.enter_context(self.arguments.held(eval_on_start=False))

    def describe(self) -> dict[str, Any]:
        """Describes the mixture of the run as plain data: the entry `run` of `ledger.json`."""
        names, run = [method.name for method in self.methods], self.run
        return describe_run(run.streams, run.mixing, run.mixture, self.trainer.args.world_size, names)

    # ---- The callbacks of a run ----

    def add_callbacks(self) -> None:
        """Adds the callback that closes steps, before all others, and connects bars and trackers."""
        callbacks = self.trainer.callback_handler.callbacks
        take_bars(callbacks, lambda: self.run.mixing)
        self.reporting.hook()
        callbacks.insert(0, self.callback())

    def callback(self) -> MixingCallback:
        """Makes the callback that starts the loop, and closes its steps and epochs."""
        handler = self.trainer.callback_handler
        return MixingCallback(self._start, self.steps.close, self.loop.take_stop_back, self.run, handler)

    def _start(self) -> None:
        """Called before the first step: the model is wrapped, the optimizer and the schedule exist."""
        self.methods.check_attached()
        for hook in self.run.hooks:
            hook.prepare(self.trainer.model_wrapped)
        self.loop.prepare()
        self.recovery.prepare()
        self.resuming.take_up_progress()
        self._held.enter_context(self.steps.taking_over())

    def after_step(self, act: Callable[..., None], tr_loss: Any, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        """Logs, saves and evaluates after a step; see `Trainer._maybe_log_save_evaluate`."""

        def log_save_evaluate() -> None:
            self.checkpoints.note_step(grad_norm, kwargs.get("learning_rate"))
            act(tr_loss, grad_norm, *args, **kwargs)

        model, trial = args[:2]
        with self.log.adding_entries():
            self.loop.after_step(log_save_evaluate, model, trial)

    def get_batch_samples(self, iterator: Iterator[Any], device: torch.device) -> tuple[list[Any], Any]:
        """Loads the next step and sets its learning rate; see `Trainer.get_batch_samples`."""
        batch, num_items = self.steps.load(iterator, device)
        if batch:
            self.run.set_learning_rate()
        else:
            self.loop.end_of_data()
        return batch, num_items

    def check_decisions(self) -> None:
        """Ends all ranks if a policy or a method failed on one of them: a checkpoint would lack a decision."""
        run, state = self.run, self.trainer.state
        if state.global_step < state.max_steps:
            error = run.policy_error
            if run.rank_sync.most(int(error is not None)):
                run.rank_sync.raise_on_all(error)
        self._raise_method_error()

    def _raise_method_error(self) -> None:
        """Raises on all ranks if a method failed on one of them after the last step."""
        run = self.run
        error = explained(run.method_error, self.trainer)
        if len(self.methods) and run.rank_sync.most(int(error is not None)):
            run.rank_sync.raise_on_all(error)


def new_recorder(trainer: Trainer, mixing: Mixing, ledger: Ledger, needs: Collection[str]) -> Recorder:
    """Makes the recorder of a run.

    Args:
        trainer: The trainer.
        mixing: The controller of the mixture.
        ledger: The ledger.
        needs: What policy and schedule observe.
    """
    return Recorder(mixing, ledger, reads_at_once=trainer.args.device.type == "cpu" or "loss" in needs)
