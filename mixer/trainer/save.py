"""Writing checkpoints from which a run resumes exactly."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, SaveStrategy

from mixer.checkpoint import checkpoint_files
from mixer.checkpoint.saved_options import OPTIONS_ENTRY, options_of
from mixer.checkpoint.write_errors import write_error
from mixer.distributed.consistency import share_files
from mixer.loading.iterable.feed import rows_file
from mixer.losses.stream_losses import StreamLosses
from mixer.run.hf_compat import loop_losses, output_folder, present_trial, push_checkpoint
from mixer.run.replaced_methods import replaced
from mixer.run.state import Basis
from mixer.trainer.guard import WeightGuard
from mixer.trainer.methods import MethodList
from mixer.utils.attributes import attributes_held
from mixer.utils.files import synced_later, write_json
from mixer.utils.text import shortened
from mixer.utils.validation import finite_number, whole_number


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The position of the training loop when a checkpoint is written; the defaults are those of one that begins.

    Args:
        seconds: Training time so far.
        running_losses: For each rank, the sum of the losses since the last log entry.
        logged_loss: The sum of the losses of all log entries.
        last_logged_step: Step of the last log entry.
        gradient_norm: Gradient norm of the last step, if known.
        learning_rate: Learning rate of the last step.
        learning_rate_factor: Factor of the batch-size schedule on the learning rate.
        epoch_end_is_left: Whether the checkpoint was written right after a step: if that step ended its epoch, the
            Trainer's work at the end of the epoch is still to be done.
        epoch_stops: Whether a callback requested the end of the epoch.
        training_stops: Whether a callback requested the end of the run.
        num_evaluations: Rows of the ledger on evaluations at this very step.
        recorder: State of the next log entry for the streams; see `Recorder.state_dict`.
        methods: State of the next log entry for the methods.
        ledger_rows: Rows of each table of the ledger, on the rank that writes it.
        num_metrics: Rows of the ledger on metrics at this very step.
    """

    seconds: float = 0.0
    running_losses: list[float]
    logged_loss: float = 0.0
    last_logged_step: int
    gradient_norm: float | None = None
    learning_rate: float | None = None
    learning_rate_factor: float = 1.0
    epoch_end_is_left: bool = False
    epoch_stops: bool = False
    training_stops: bool = False
    num_evaluations: int = 0
    recorder: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Any] = field(default_factory=dict)
    num_metrics: int = 0
    ledger_rows: dict[str, int] = field(default_factory=dict)

    def running_loss(self, rank: int, world_size: int) -> float:
        """Returns a rank's sum of losses; the mean over the saved ranks if their number has changed."""
        losses = self.running_losses
        return losses[rank] if len(losses) == world_size else math.fsum(losses) / len(losses)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data; numbers that JSON cannot represent become text."""
        return {name: _to_json(value) for name, value in asdict(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Progress":
        """Restores a saved state.

        Raises:
            ValueError: If a field is missing, unknown or of another kind.
        """
        names = {entry.name for entry in fields(cls)}
        missing, unknown = names - state.keys(), state.keys() - names
        if missing or unknown:
            raise ValueError(f"the saved progress lacks {sorted(missing)} and has the unknown fields {sorted(unknown)}")
        return cls(**{entry.name: _CHECKS[entry.type](state[entry.name], entry.name) for entry in fields(cls)})


class HeldArguments:
    """Training arguments that the Trainer sees otherwise than the user set them.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._users: Mapping[str, Any] = {}  # what the user set

    @contextlib.contextmanager
    def held(self, **values: Any) -> Iterator[None]:
        """Shows other arguments to the Trainer temporarily."""
        args, before = self._trainer.args, self._users
        self._users = {**{name: getattr(args, name) for name in values}, **before}
        try:
            with attributes_held(args, **values):
                yield
        finally:
            self._users = before

    def as_the_user_set_them(self) -> contextlib.AbstractContextManager[None]:
        """Shows the user's arguments temporarily."""
        return self.held(**self._users)


class Checkpointing:
    """Writes checkpoints that contain the mixture and the loop's progress, and a marker once complete.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        losses: The losses of the streams.
        methods: Its methods, which have states of their own.
        arguments: The training arguments.
        guard: Refuses weights that are not finite.
    """

    def __init__(
        self, basis: Basis, losses: StreamLosses, methods: MethodList, arguments: HeldArguments, guard: WeightGuard
    ):
        self._trainer, self._plan, self._run, self._ranks = basis
        self._losses, self._methods, self._arguments, self._guard = losses, methods, arguments, guard
        self._started = 0.0  # start time of the run without its interruptions, by the monotonic clock
        self.last: Path | None = None  # the newest checkpoint
        # Number, gradient norm and learning rate of the last step.
        self._last_step: tuple[int | None, Tensor | float | None, float | None] = (None, None, None)
        self._epoch_end_is_left = False
        self._num_parts = 0  # nested parts of a checkpoint that are being written
        self._unsaved: tuple[str, Exception] | None = None  # the part that could not be written, and the cause

    @property
    def start_time(self) -> float:
        """Start time of the run in the present wall clock, from which the Trainer computes the runtime."""
        return time.time() - (time.monotonic() - self._started)

    @property
    def _folder(self) -> Path:
        return output_folder(self._trainer, present_trial(self._trainer))

    @property
    def is_on(self) -> bool:
        """Whether checkpoints are written at all."""
        return bool(self._trainer.args.save_strategy != SaveStrategy.NO)

    @property
    def holds_step(self) -> bool:
        """Whether the newest checkpoint is of the present step."""
        return self.last is not None and checkpoint_files.step_of(self.last) == self._trainer.state.global_step

    def begin_run(self, last: Path | None) -> None:
        """Begins a run, at its newest checkpoint if it resumes; later ones in the folder are of an earlier run."""
        self.last, self._last_step = last, (None, None, None)
        if self._trainer.args.should_save:
            checkpoint_files.supersede(self._folder, last)

    def start_clock(self, seconds: float) -> None:
        """Starts the clock of a run that has trained for some seconds before."""
        self._started = time.monotonic() - seconds

    def note_end(self) -> None:
        """Notes in the newest checkpoint that the run has ended, unless it is one of another run."""
        is_own = self.last is not None and checkpoint_files.is_inside(self.last, self._folder)
        if self._trainer.args.should_save and is_own:
            with contextlib.suppress(FileNotFoundError):
                checkpoint_files.annotate(Path(str(self.last)), ended=True)

    def note_step(self, grad_norm: Any, learning_rate: float | None) -> None:
        """Records the last step; called after every step, and once more at the end of an epoch."""
        step = self._trainer.state.global_step
        self._epoch_end_is_left = step != self._last_step[0]
        self._last_step = (step, grad_norm, learning_rate)

    # ---- The model ----

    @contextlib.contextmanager
    def saving_model(self) -> Iterator[None]:
        """Saves the arguments as the user set them; an error waits while a checkpoint is written."""
        put_off = self._putting_errors_off("its model") if self._num_parts else contextlib.nullcontext()
        with put_off, self._arguments.as_the_user_set_them(), self._weights_on_each_node():
            yield

    @contextlib.contextmanager
    def _weights_on_each_node(self) -> Iterator[None]:
        """Lets every rank that saves write the weights: in transformers 5.23 only rank 0 does."""
        trainer = self._trainer
        if not trainer.args.save_on_each_node:
            yield
            return
        model: Any = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        with replaced(model, should_save_on_this_rank=lambda is_main_process: is_main_process):
            yield

    # ---- A checkpoint ----

    def write(self, save: Callable[..., None], model: Any, trial: Any) -> None:
        """Writes a checkpoint, marks it complete after all ranks have written, and then removes older ones.

        Args:
            save: Writes the Trainer's part.
            model: The model as it is trained.
            trial: The trial of a hyperparameter search.

        Raises:
            WriteError: If a file cannot be written; on the other ranks a `RemoteError`.
            NonFiniteWeightsError: Before anything is written, if weights are not finite; likewise.
        """
        self._ranks.run_on_all(self._guard.check_weights)
        args, trainer = self._trainer.args, self._trainer
        checkpoint = output_folder(trainer, trial) / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        with self._putting_errors_off("its folder"):
            if args.should_save:
                checkpoint_files.begin_writing(checkpoint)
        self._end_if_unwritten(checkpoint)
        trainer.accelerator.wait_for_everyone()
        with (
            self._putting_errors_off("what the Trainer keeps"),
            self._arguments.held(save_total_limit=None, push_to_hub=False),
        ):
            save(model, trial)
        if not args.save_only_model:
            self._save_states(checkpoint)
        if args.save_on_each_node:
            # A rank may run on another node after a resume.
            names = (f"rng_state_{args.process_index}.pth", rows_file(args.process_index))
            share_files(checkpoint, names, args.should_save, self._ranks)
        self._end_if_unwritten(checkpoint)
        trainer.accelerator.wait_for_everyone()
        with self._putting_errors_off("the list of its files"):
            if args.should_save:
                checkpoint_files.complete(checkpoint)
        self._end_if_unwritten(checkpoint)
        self._finish(checkpoint)

    def _finish(self, checkpoint: Path) -> None:
        """Pushes a complete checkpoint, and removes older ones."""
        args, trainer = self._trainer.args, self._trainer
        self.last = checkpoint
        if args.push_to_hub:
            if args.hub_strategy != HubStrategy.END:
                self._run.ledger.finish()  # the push runs in the background and would upload a growing file in part
            push_checkpoint(trainer, checkpoint)
        if args.should_save:
            checkpoint_files.rotate(checkpoint, args.save_total_limit, trainer.state.best_model_checkpoint)
        trainer.accelerator.wait_for_everyone()  # callbacks may read it, or copy it, on any rank

    def _save_states(self, checkpoint: Path) -> None:
        """Saves the mixture, the loop's progress, and the methods."""
        ledger_rows: dict[str, int] = {}
        with self._putting_errors_off("the ledger it refers to"):
            self._run.recorder.flush()
            self._run.ledger.sync()
            ledger_rows = self._run.ledger.num_rows()
        progress, args = replace(self._progress(), ledger_rows=ledger_rows), self._trainer.args
        with self._putting_errors_off("the state of its mixture"):
            if args.should_save:
                self._save_mixture(checkpoint, progress)
            if self._run.feed is not None:
                self._run.feed.save(checkpoint, args.process_index)
        for method in self._methods if args.should_save else ():
            with self._putting_errors_off(f"{method.name}, a part of its methods"), synced_later():
                method.save(self._methods.folder_of(checkpoint, method))

    def _save_mixture(self, folder: Path, progress: Progress) -> None:
        loader = self._run.present_loader
        cap = self._run.splitting.cap.state_dict(loader.configured_cap)
        state = {**self._run.mixing.state_dict(), "progress": progress.state_dict(), checkpoint_files.CAP_ENTRY: cap}
        state[checkpoint_files.LOSSES_ENTRY] = self._losses.state_dict()
        with self._arguments.as_the_user_set_them():
            state[OPTIONS_ENTRY] = options_of(self._trainer, self._plan, self._run.mixing)
        with synced_later():  # by `complete`
            write_json(
                folder / checkpoint_files.STATE_FILE,
                {**state, checkpoint_files.METHODS_ENTRY: self._methods.settings()},
            )

    def _progress(self) -> Progress:
        trainer, run = self._trainer, self._run
        state, control = trainer.state, trainer.control
        running_loss, logged_loss, last_logged_step = loop_losses(trainer)
        _, gradient_norm, learning_rate = self._last_step
        num_evaluations, num_metrics = run.ledger.num_evaluations(state.global_step)
        return Progress(
            seconds=time.monotonic() - self._started,
            running_losses=trainer.accelerator.gather(running_loss.reshape(1)).tolist(),
            logged_loss=logged_loss,
            last_logged_step=last_logged_step,
            gradient_norm=None if gradient_norm is None else float(gradient_norm),
            learning_rate=learning_rate,
            learning_rate_factor=1.0 if run.learning_rate is None else run.learning_rate.factor,
            epoch_end_is_left=self._epoch_end_is_left,
            epoch_stops=control.should_epoch_stop,
            # The end of the budget is no requested stop: with a larger budget the run continues.
            training_stops=control.should_training_stop and state.global_step < state.max_steps,
            num_evaluations=num_evaluations,
            num_metrics=num_metrics,
            recorder=run.recorder.state_dict(),
            methods=self._methods.log_state(),
        )

    # ---- Errors of one rank ----

    @contextlib.contextmanager
    def _putting_errors_off(self, what: str) -> Iterator[None]:
        """Defers an error of a rank that cannot write its part until all ranks can raise it."""
        self._num_parts += 1
        try:
            yield
        except Exception as error:  # on a full disk libraries raise errors of their own
            self._unsaved = self._unsaved or (what, error)
        finally:
            self._num_parts -= 1

    def _end_if_unwritten(self, checkpoint: Path) -> None:
        unsaved, self._unsaved = self._unsaved, None

        def raise_unsaved() -> None:
            if unsaved is not None:
                what, error = unsaved
                raise write_error(f"{checkpoint}, {what},", error, checkpoint.parent) from error

        try:
            self._ranks.run_on_all(raise_unsaved)
        except Exception:
            with contextlib.suppress(OSError):
                if self._trainer.args.should_save:
                    checkpoint_files.abandon(checkpoint)
            raise


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any, name: str) -> float:
    return float(value) if value in ("nan", "inf", "-inf") else finite_number(value, name)


def _kind(kind: type, words: str) -> Callable[[Any, str], Any]:
    def checked(value: Any, name: str) -> Any:
        if not isinstance(value, kind) or value == []:
            raise ValueError(f"{name} must be {words}, but {shortened(repr(value))} was saved")
        return value

    return checked


_flag, _list, _mapping = _kind(bool, "true or false"), _kind(list, "a list of numbers"), _kind(dict, "a mapping")
# How a saved field of `Progress` is read, by its type.
_CHECKS: dict[Any, Callable[[Any, str], Any]] = {
    int: whole_number,
    float: _number,
    float | None: lambda value, name: None if value is None else _number(value, name),
    bool: _flag,
    list[float]: lambda value, name: [_number(number, name) for number in _list(value, name)],
    dict[str, Any]: _mapping,
    dict[str, int]: lambda value, name: {
        key: whole_number(number, name) for key, number in _mapping(value, name).items()
    },
}
