"""Writing checkpoints from which a run resumes exactly."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy

from mixer.distributed.consistency import share_files
from mixer.ledger.recorder import Recorder
from mixer.loading.iterable.feed import rows_file
from mixer.trainer.checkpointing.choose import write_error
from mixer.trainer.checkpointing.files import (
    CAP_ENTRY,
    METHODS_ENTRY,
    STATE_FILE,
    abandon,
    begin_writing,
    complete,
    rotate,
)
from mixer.trainer.losses import attributes_held
from mixer.trainer.step import StepMixin
from mixer.utils.files import write_json


@dataclass(frozen=True)
class Progress:
    """The position of the training loop when a checkpoint is written.

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

    seconds: float
    running_losses: list[float]
    logged_loss: float
    last_logged_step: int
    gradient_norm: float | None
    learning_rate: float | None
    learning_rate_factor: float
    epoch_end_is_left: bool
    epoch_stops: bool
    training_stops: bool
    num_evaluations: int
    recorder: dict[str, Any]
    methods: dict[str, Any]
    num_metrics: int
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
            ValueError: If a field is missing or unknown.
        """
        names = {one.name for one in fields(cls)}
        missing, unknown = names - state.keys(), state.keys() - names
        if missing or unknown:
            raise ValueError(f"the saved progress lacks {sorted(missing)} and has the unknown fields {sorted(unknown)}")
        return cls(**{name: _from_json(value) for name, value in state.items()})


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return float(value) if isinstance(value, str) else value


class SavingMixin(StepMixin):
    """A Trainer whose checkpoints contain the mixture and the loop's progress, and a marker once complete."""

    _recorder: Recorder
    _user_arguments: Mapping[str, Any] = {}
    _started: float = 0.0  # start time of the run without its interruptions, by the monotonic clock
    _last_checkpoint: Path | None = None
    # Number, gradient norm and learning rate of the last step.
    _last_step: tuple[int | None, Tensor | float | None, float | None] = (None, None, None)
    _epoch_end_is_left: bool = False
    _num_parts: int = 0  # nested parts of a checkpoint that are being written
    _unsaved: tuple[str, Exception] | None = None  # the part that could not be written, and the cause

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Saves the model, and the arguments as the user set them; see `Trainer.save_model`."""
        put_off = self._putting_errors_off("its model") if self._num_parts else contextlib.nullcontext()
        with put_off, self._arguments_held(**self._user_arguments), self._weights_on_each_node():
            super().save_model(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self._putting_errors_off("its optimizer"):
            super()._save_optimizer_and_scheduler(output_dir)

    @contextlib.contextmanager
    def _weights_on_each_node(self) -> Iterator[None]:
        """Lets every rank that saves write the weights: in transformers 5.23 only rank 0 does."""
        if not self.args.save_on_each_node:
            yield
            return
        model: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        model.should_save_on_this_rank = lambda is_main_process: is_main_process
        try:
            yield
        finally:
            del model.should_save_on_this_rank

    @contextlib.contextmanager
    def _arguments_held(self, **values: Any) -> Iterator[None]:
        """Shows other arguments to the Trainer temporarily; `_user_arguments` are the hidden ones."""
        hidden = {**{name: getattr(self.args, name) for name in values}, **self._user_arguments}
        with attributes_held(self, _user_arguments=hidden), attributes_held(self.args, **values):
            yield

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Writes a checkpoint, marks it complete after all ranks have written, and then removes older ones."""
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        checkpoint = Path(self._get_output_dir(trial=trial)) / name
        with self._putting_errors_off("its folder"):
            if self.args.should_save:
                begin_writing(checkpoint)
        self._end_if_unwritten(checkpoint)
        self.accelerator.wait_for_everyone()
        with self._putting_errors_off("it"), self._arguments_held(save_total_limit=None, push_to_hub=False):
            super()._save_checkpoint(model, trial)
        if self.args.save_on_each_node:
            # A rank may run on another node after a resume.
            names = (f"rng_state_{self.args.process_index}.pth", rows_file(self.args.process_index))
            share_files(checkpoint, names, self.args.should_save, self._rank_sync)
        self._end_if_unwritten(checkpoint)
        self.accelerator.wait_for_everyone()
        with self._putting_errors_off("the list of its files"):
            if self.args.should_save:
                complete(checkpoint)
        self._end_if_unwritten(checkpoint)
        self._last_checkpoint = checkpoint
        if self.args.push_to_hub:
            if self.args.hub_strategy != HubStrategy.END:
                self.ledger.finish()  # the push runs in the background and would upload a growing file in part
            self._push_from_checkpoint(str(checkpoint))
        if self.args.should_save:
            rotate(checkpoint, self.args.save_total_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()  # callbacks may read it, or copy it, on any rank

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
            self._rank_sync.run_on_all(raise_unsaved)
        except Exception:
            with contextlib.suppress(OSError):
                if self.args.should_save:
                    abandon(checkpoint)
            raise

    def _save_rng_state(self, output_dir: str) -> None:
        with self._putting_errors_off("its random state"):
            super()._save_rng_state(output_dir)
        ledger_rows: dict[str, int] = {}
        with self._putting_errors_off("the ledger it refers to"):
            self._recorder.settle()
            self.ledger.sync()
            ledger_rows = self.ledger.num_rows()
        progress = replace(self._progress_now(), ledger_rows=ledger_rows)
        with self._putting_errors_off("the state of its mixture"):
            if self.args.should_save:
                loader = self._present_loader
                cap = loader.cap.state_dict(loader.configured_cap)
                state = {**self.mixing.state_dict(), "progress": progress.state_dict(), CAP_ENTRY: cap}
                state[METHODS_ENTRY] = self._method_settings()
                write_json(Path(output_dir) / STATE_FILE, state)
            if self._feed is not None:
                self._feed.save(Path(output_dir), self.args.process_index)

    @property
    def _start_time(self) -> float:
        """Start time of the run in the present wall clock, from which the Trainer computes the runtime."""
        return time.time() - (time.monotonic() - self._started)

    def _progress_now(self) -> Progress:
        state, control = self.state, self.control
        _, gradient_norm, learning_rate = self._last_step
        num_evaluations, num_metrics = self.ledger.num_evaluations(state.global_step)
        return Progress(
            seconds=time.monotonic() - self._started,
            running_losses=self.accelerator.gather(self._tr_loss.reshape(1)).tolist(),
            logged_loss=self._total_loss_scalar,
            last_logged_step=self._globalstep_last_logged,
            gradient_norm=None if gradient_norm is None else float(gradient_norm),
            learning_rate=learning_rate,
            learning_rate_factor=1.0 if self._learning_rate is None else self._learning_rate.factor,
            epoch_end_is_left=self._epoch_end_is_left,
            epoch_stops=control.should_epoch_stop,
            # The end of the budget is no requested stop: with a larger budget the run continues.
            training_stops=control.should_training_stop and state.global_step < state.max_steps,
            num_evaluations=num_evaluations,
            num_metrics=num_metrics,
            recorder=self._recorder.state_dict(),
            methods=self._log_state(),
        )

    def _method_settings(self) -> list[str]:
        """Lists the settings of the methods."""
        return []

    def _log_state(self) -> dict[str, Any]:
        """Returns the methods' part of the next log entry."""
        return {}

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        # The loop calls this after every step, and once more at the end of an epoch.
        step = self.state.global_step
        self._epoch_end_is_left = step != self._last_step[0]
        self._last_step = (step, grad_norm, kwargs.get("learning_rate"))
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)
