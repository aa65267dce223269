"""Resuming from a checkpoint as if the run had never stopped.

What is restored, in the order in which `Trainer.train` comes to it:

A checkpoint of the plain Trainer has no `mixing.json`: `TakeOver` stands in for what would be read of it.

| when | what | from | by |
|---|---|---|---|
| first | the folder's lock, the checkpoint | `complete.json` | `StartingPoint.chosen` |
| then | weights (DeepSpeed, FSDP: with the optimizer) | `model.safetensors` | the Trainer, `loaded_whole` |
| the loop asks for its loader | memories and states of methods | `methods/NAME/` | `MethodList.load` |
| | `format`, `options`, `methods`: refused if others, or told | `mixing.json` | `Resuming` |
| | `planner`: position of each stream in its order, what it is owed | | `Mixing`: `Planner` |
| | `clock`: steps, samples, epochs | | `Clock` |
| | `batch_size`: the schedule and its size | | `BatchSize` |
| | `num_tokens`, `num_labels`, `skipped`: of each stream so far | | `Mixing` |
| | `loss_units`: of each stream | | `LossUnits` |
| | `weights`: the policy, its last decision, evaluation losses | | `MixtureWeights` |
| | the tables, cut at this step | `ledger/` | `Ledger.begin` |
| | `progress`: sums for the next log entry | `mixing.json` | `Recorder`, `MethodList` |
| | rows of iterable streams | `rows-RANK.json` | `StreamLoading.new_feed` |
| | `micro_batch_cap`, if one was found by halving | `mixing.json` | `Resuming.lowered` |
| | `losses`: what they are divided by | | `Resuming.restore_losses` |
| it sets its length | `progress`: the epoch to go on in | | `LoopControl.first_epoch` |
| the model is wrapped | optimizer, schedule | `optimizer.pt`, `scheduler.pt` | the Trainer, in `loading_optimizer` |
| `on_train_begin` | `progress`: time, sums of losses, learning rate | `mixing.json` | `LoopControl.prepare` |
| the first epoch | random states | `rng_state.pth` | the Trainer, or `LoopControl.run_epoch` |
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from mixer.checkpoint import saved_options
from mixer.checkpoint.checkpoint_files import CAP_ENTRY, LOSSES_ENTRY, STATE_FILE, is_of_trainer, read_state, step_of
from mixer.checkpoint.choosing import Origin
from mixer.checkpoint.starting_point import StartingPoint
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.loading.batching import MicroBatchCap
from mixer.losses.stream_losses import StreamLosses
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Clock
from mixer.mixture.controller import check_format
from mixer.mixture.planner import Planner
from mixer.run.state import Basis
from mixer.trainer.loop import LoopControl
from mixer.trainer.methods import MethodList
from mixer.trainer.save import Checkpointing, Progress
from mixer.utils.errors import InvalidValueError
from mixer.utils.validation import refusing_damage

logger = logging.get_logger(__name__)

NewParts = Callable[[int | None], tuple[Planner, Clock, BatchSize]]


class Resuming:
    """Begins a run, exactly after the checkpoint that it starts from if it has one.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        start: Where the run starts.
        loop: The Trainer's loop.
        checkpoints: Writes checkpoints.
        methods: The methods of the run.
    """

    def __init__(
        self, basis: Basis, start: StartingPoint, loop: LoopControl, checkpoints: Checkpointing, methods: MethodList
    ):
        self._basis = basis
        self._trainer, self._plan, self._run, self._ranks = basis
        self._start, self._loop, self._checkpoints, self._methods = start, loop, checkpoints, methods
        self._saved_cap: Mapping[str, Any] | None = None  # the checkpoint's limit of micro-batches
        self._saved_losses: Mapping[str, Any] | None = None  # what it knows of the losses
        self._saved_optimizer: str | None = None  # the class of its optimizer
        self._begins_policy = False  # whether another policy than that of the checkpoint begins, in a fork

    # ---- Where the loop asks for its loader ----

    def begin(self, new_parts: NewParts, describe: Callable[[], dict[str, Any]]) -> None:
        """Begins the mixture, the ledger and the recorder, new or as the checkpoint has them.

        Args:
            new_parts: Makes the parts of the mixture, given the initial batch size.
            describe: Describes the run for `ledger.json`.

        Raises:
            ValueError: If the state of the checkpoint does not fit the run, or is damaged.
        """
        run, progress = self._run, None
        checkpoint = None if self._start.checkpoint is None else Path(self._start.checkpoint)
        has_records = checkpoint is not None and not is_of_trainer(checkpoint)
        self._saved_cap = self._saved_losses = self._saved_optimizer = None
        self._begins_policy = False
        if checkpoint is None or not has_records:
            run.mixing.restart(*new_parts(None))
        if checkpoint is not None:
            progress = self._restore(checkpoint, new_parts) if has_records else take_over(self._basis, checkpoint)
            self._loop.resume(progress, self._start.has_ended)
            if self._trainer.is_world_process_zero():
                clock = run.mixing.clock
                logger.warning("Resumed from %s (step %d of %d).", checkpoint, clock.step, clock.max_steps)
        self._ranks.run_on_all(partial(self._checkpoints.begin_run, checkpoint))
        self._ranks.run_on_all(partial(self._begin_ledger, progress if has_records else None, describe()))
        run.recorder = Recorder(run.mixing, run.ledger, self._plan.reads_losses_at_once)
        if not has_records:
            run.recorder.record_start()
        elif self._begins_policy:
            run.recorder.record_new_policy(run.mixing.clock.step)
        with self._naming_checkpoint():
            run.recorder.load_state_dict({} if progress is None else progress.recorder)
            self._methods.load_log_state({} if progress is None else progress.methods)

    def lowered(self, cap: MicroBatchCap) -> MicroBatchCap:
        """Lowers a micro-batch limit to that which an earlier part of the run has found."""
        with self._naming_checkpoint():
            return cap.lowered_to(self._saved_cap)

    def restore_losses(self, losses: StreamLosses) -> None:
        """Restores what an earlier part of the run has found out of its losses."""
        if self._saved_losses is not None:
            with self._naming_checkpoint():
                losses.load_state_dict(self._saved_losses)

    def loading_optimizer(self) -> contextlib.AbstractContextManager[None]:
        """Refuses another optimizer than the checkpoint's; the Trainer loads it in this context."""
        if self._start.checkpoint is None or self._trainer.is_deepspeed_enabled:
            return contextlib.nullcontext()
        return saved_options.same_optimizer(self._trainer, self._start.checkpoint, self._saved_optimizer)

    # ---- The mixture ----

    def _restore(self, checkpoint: Path, new_parts: NewParts) -> Progress:
        """Restores all but what the user has set by hand since; returns the position of the loop."""
        self._methods.load(checkpoint)
        state = read_state(checkpoint)
        mixing = self._run.mixing
        manual, manual_size = mixing.manual_weights, mixing.manual_batch_size
        with self._naming_checkpoint():
            progress = self._load(state, new_parts)
        if manual is not None:
            mixing.set_weights(manual)
        if manual_size is not None:
            mixing.set_batch_size(manual_size)
        return progress

    def _load(self, state: Mapping[str, Any], new_parts: NewParts) -> Progress:
        check_format(state)
        mixing, saved = self._run.mixing, state[saved_options.OPTIONS_ENTRY]
        self._saved_cap, self._saved_losses = state.get(CAP_ENTRY), state.get(LOSSES_ENTRY)
        self._saved_optimizer = saved["optimizer"]
        progress = Progress.from_state(state["progress"])
        batch_size = self._batch_size_of(state, len(progress.running_losses))
        mixing.restart(*new_parts(batch_size))
        try:
            self._methods.check_settings(state)
            # With the mixing of the checkpoint a fork goes on to the bit.
            if self._start.parent is not None:
                self._begins_policy = saved["own"]["mixing"] != self._own_options()["own"]["mixing"]
            mixing.load_state_dict(state, new_policy=self._begins_policy)
        except ValueError as error:
            if not self._plan.config.allow_inexact:
                text = f"{_sentence(error)} To resume anyway, set allow_inexact=True"
                raise InvalidValueError(text, option="allow_inexact") from None
            logger.warning("Resumed inexactly: %s", _sentence(error))
            mixing.restart(*new_parts(batch_size))
            mixing.load_state_dict(state, allow_inexact=True)
            progress = replace(progress, recorder={}, methods={})
        others = saved_options.other_options(saved, self._own_options())
        if others and self._trainer.is_world_process_zero():
            logger.warning("Resumed from %s with other options. %s", self._start.checkpoint, others)
        return progress

    def _own_options(self) -> dict[str, Any]:
        return saved_options.options_of(self._trainer, self._plan, self._run.mixing)

    def _batch_size_of(self, state: Mapping[str, Any], num_ranks: int) -> int | None:
        """Returns the initial batch size to go on with; `None` for that of the training arguments."""
        saved, has_own = int(state["clock"]["initial_batch_size"]), self._plan.schedule.initial is not None
        problem = None if has_own else saved_options.batch_size_problem(self._trainer, state, num_ranks)
        if problem is None:
            return saved
        is_of_ranks, difference = problem
        if not is_of_ranks and self._plan.config.allow_inexact:
            return None
        if not is_of_ranks:
            text = f"{difference}. To keep {saved}, set batch_size={saved} (gradient_accumulation_steps=1; "
            text += "per_device_train_batch_size caps micro-batches); to change it, allow_inexact=True."
            raise InvalidValueError(text, option="batch_size")
        if self._trainer.is_world_process_zero():
            logger.warning("Resumed on another number of ranks: %s. It stays %d.", difference, saved)
        return saved

    # ---- The ledger ----

    def _begin_ledger(self, progress: Progress | None, described: dict[str, Any]) -> None:
        """Begins the ledger, at the step of the checkpoint if the run resumes."""
        ledger, mixing, plan = self._run.ledger, self._run.mixing, self._plan
        described |= self._fork_of(ledger)
        if self._start.parent is not None:
            ledger.copy_from(self._start.parent / "ledger")
        existed, step = ledger.folder.exists(), None if progress is None else mixing.clock.step
        left = (None, None) if progress is None else (progress.num_evaluations, progress.num_metrics)
        names = {"streams": list(mixing.names), "policy": plan.policy.name, "batch_size": plan.schedule.name}
        ledger.begin(step, {**names, "run": described}, *left)
        if ledger.is_writer and ledger.interval_steps > 1 and plan.config.ledger_interval_steps is None:
            logger.warning(
                "The ledger has %s streams: a row covers %d steps (counts are summed, losses and weights averaged). "
                "Set ledger_interval_steps=1 for one row per step and stream.",
                *(f"{len(plan.streams):,}", ledger.interval_steps),
            )
        if progress is None or not ledger.is_writer:
            return
        if existed:
            self._check_ledger_rows(progress, step)
        else:
            logger.warning(
                "%s does not exist: the ledger begins after the checkpoint; the earlier rank 0's node has older rows.",
                ledger.folder,
            )

    def _fork_of(self, ledger: Ledger) -> dict[str, Any]:
        """Says of which run this one is a fork, also when it goes on after an interruption; empty if of none."""
        origin = Origin.read(ledger.folder.parent) if ledger.is_writer else None
        if origin is None or not origin.is_fork:
            return {}
        return {"parent": str(origin.checkpoint.parent), "forked_at": step_of(origin.checkpoint)}

    def _check_ledger_rows(self, progress: Progress, resume_step: int | None) -> None:
        """Refuses a ledger that has lost rows since the checkpoint of this folder was written."""
        ledger, last = self._run.ledger, self._checkpoints.last
        if last is None or last.resolve().parent != ledger.folder.parent.resolve():
            return
        missing = ", ".join(
            f"{ledger.folder / table} lacks {lost} rows"
            for table, num_rows in ledger.num_rows().items()
            if (lost := progress.ledger_rows.get(table, 0) - num_rows) > 0
        )
        if not missing:
            return
        message = (
            f"{missing} that existed when the checkpoint of step {resume_step} was written: a file of the ledger was "
            f"removed, or the end of one was damaged."
        )
        if not self._plan.config.allow_inexact:
            text = f"{message} Resume from an earlier checkpoint, which records these rows again, or continue without "
            raise InvalidValueError(f"{text}them with allow_inexact=True.", option="allow_inexact")
        logger.warning("%s The run continues without them.", message)

    @contextlib.contextmanager
    def _naming_checkpoint(self) -> Iterator[None]:
        """Raises a `ValueError` that names the checkpoint if its state is damaged or does not fit the run."""
        try:
            with refusing_damage(f"its {STATE_FILE}"):
                yield
        except ValueError as error:
            text = f"Cannot resume the mixture from {self._start.checkpoint}: {_sentence(error)}"
            option = getattr(error, "option", None) or "resume_from_checkpoint"
            raise InvalidValueError(text, option=option, stream=getattr(error, "stream", None)) from error


def _sentence(error: Exception) -> str:
    return f"{str(error).rstrip('.')}."


_HINT = "To go on anyway, set allow_inexact=True."


def take_over(basis: Basis, checkpoint: Path) -> Progress:
    """Moves a mixture that has just begun to the step of a checkpoint of the plain Trainer, which all ranks have read.

    The Trainer itself restores weights, optimizer, learning rate and random numbers. Streams begin where so many steps
    of this mixture would have left them.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        checkpoint: The checkpoint's folder.

    Returns:
        The position of the loop.

    Raises:
        ValueError: If the batch size or the data cannot be those of that run, unless that is allowed.
    """
    trainer, plan, run, _ = basis
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    mixing = run.mixing
    mixing.pass_over(state.global_step)
    problem = _other_amount(mixing.clock.epoch, state, not mixing.clock.has_length)
    rows = [mixing.names[number] for number in mixing.planner.row_drawers]
    if problem is None and rows:
        problem = InvalidValueError(
            f"Iterable streams begin with their first rows again, for {checkpoint} does not say how far {rows} were "
            f"read. {_HINT}",
            option="resume_from_checkpoint",
            stream=rows[0],
            hint=_HINT,
        )
    if problem is not None and not plan.config.allow_inexact:
        raise problem
    if trainer.is_world_process_zero():
        logger.warning(
            "The run continues from %s, a checkpoint of the plain Trainer: weights, optimizer, learning rate, random "
            "numbers and step %d are those of that run. Not exact: the rows it has trained on. Streams begin where %d "
            "steps of this mixture would have left them (%s samples). Tokens so far, policy and ledger begin here.%s",
            *(checkpoint, state.global_step, state.global_step),
            *(f"{mixing.clock.num_samples:,}", "" if problem is None else f" {problem}"),
        )
    return Progress(running_losses=[0.0] * trainer.args.world_size, last_logged_step=state.global_step)


def _other_amount(epoch: float, state: TrainerState, spans_run: bool) -> InvalidValueError | None:
    """Compares the epochs that the steps make with those of the checkpoint: its batch size is not saved."""
    if spans_run or state.epoch is None or abs(epoch - state.epoch) <= 1e-6 * max(1.0, epoch):
        return None
    return InvalidValueError(
        f"batch_size, or the data: {state.global_step} steps were {state.epoch:g} epochs in the checkpoint, and are "
        f"{epoch:g} with per_device_train_batch_size, gradient_accumulation_steps, ranks and streams as they are now. "
        f"{_HINT}",
        option="batch_size",
        expected=f"as in the run of the checkpoint, in which {state.global_step} steps were {state.epoch:g} epochs",
        found=epoch,
        hint=_HINT,
    )
