"""How a run is stopped: by callbacks, which may ask for it on one rank alone, and by signals from outside."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from mixer.distributed.signals import StopSignals, ending, which
from mixer.loading.step import StepBatch, StepCounts
from mixer.trainer.checkpointing.checkpoint import step_of
from mixer.trainer.pacing import PacingMixin

_FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
# Callbacks of these packages go by what is the same on all ranks.
_KNOWN = ("transformers", "trl", "mixer", "replay", "tasks")


class StoppingMixin(PacingMixin):
    """A Trainer whose ranks stop, save and evaluate together, and which a signal ends after the step in progress.

    What signals a rank has had travels in the collective before each forward. What callbacks ask for is compared after
    each step where there are some that may ask for it on one rank alone: the user's own.
    """

    _handles_signals: bool = True
    _signals: StopSignals = StopSignals()
    _came: signal.Signals | None = None  # what a rank had received when the present step was confirmed
    _stopped_by: signal.Signals | None = None  # what ended the run before it was done
    _compares_control: bool = False

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains until it is done or a signal has come; see `Trainer.train`.

        Raises:
            RunTerminated: After a SIGTERM or SIGUSR1, once the run is saved; a `SystemExit`.
            RunInterrupted: After a SIGINT, likewise; a `KeyboardInterrupt`.
        """
        self._came, self._stopped_by, self._signals = None, None, StopSignals()
        if self._mixing is None or not self._handles_signals:
            return super().train(*args, **kwargs)
        with self._signals:
            result = super().train(*args, **kwargs)
        # One that came after the last step finds nothing left to stop, but ends what comes after the run.
        number = self._stopped_by or which(self._rank_sync.greatest(np.array(self._signals.flags)))
        if number is not None:
            raise ending(self._how_it_ended(number), number)
        return result

    def _how_it_ended(self, number: signal.Signals) -> str:
        step, checkpoint = self.state.global_step, self._last_checkpoint
        if self._stopped_by is None:
            return f"{number.name} came when the run had ended by itself, after step {step}."
        if not self._holds_step(checkpoint):
            return f"{number.name} ended the run after step {step}. Nothing was saved: save_strategy is 'no'."
        return (
            f"{number.name} ended the run after step {step}; {checkpoint} holds it. It goes on with --resume auto, "
            "or train(resume_from_checkpoint=True)."
        )

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        if self._mixing is not None:
            are_known = all(map(_is_known, self.callback_handler.callbacks))
            self._compares_control = bool(self._rank_sync.most(int(not are_known)))
        return super()._inner_training_loop(*args, **kwargs)

    def _contents(self, batch: StepBatch) -> StepCounts:
        return replace(super()._contents(batch), signals=self._signals.flags)

    def _load_and_confirm(self, load: Callable[[], StepBatch | None]) -> StepBatch | None:
        batch = super()._load_and_confirm(load)
        self._came = which(self._step_counts.signals)
        return batch

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        # The loop comes here after every step, and once more at an epoch's end: where a signal has ended the run,
        # that is left to the run that goes on.
        if self._stopped_by is not None:
            return
        self._agree_on_control()
        if self._came is not None and not self.control.should_training_stop:
            self._stopped_by, self.control.should_save = self._came, self._saves
        calls_back = self.control.should_log or self.control.should_evaluate or self.control.should_save
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        if calls_back:
            self._agree_on_control()
        if self._stopped_by is not None:
            if self._saves and not self._holds_step(self._last_checkpoint):  # an evaluation has said not to
                self._save_checkpoint(model, trial)
            # Only now: a checkpoint that said so would have the run that goes on from it end at once.
            self.control.should_training_stop = True

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        metrics = super()._evaluate(*args, **kwargs)
        self._agree_on_control()
        return metrics

    def _agree_on_control(self) -> None:
        """Has all ranks do what one of them is asked to."""
        if not self._compares_control:
            return
        own = np.array([getattr(self.control, name) for name in _FLAGS], dtype=np.int64)
        for name, flag in zip(_FLAGS, self._rank_sync.greatest(own).tolist(), strict=True):
            setattr(self.control, name, bool(flag))

    @property
    def _saves(self) -> bool:
        return bool(self.args.save_strategy != SaveStrategy.NO)

    def _holds_step(self, checkpoint: Path | None) -> bool:
        return checkpoint is not None and step_of(checkpoint) == self.state.global_step

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        if self._stopped_by is None:
            return super()._finalize_training(*args, **kwargs)
        # The Trainer would load the best model, and of checkpoints leave no other one.
        with self._arguments_held(load_best_model_at_end=False, save_total_limit=None):
            return super()._finalize_training(*args, **kwargs)


def _is_known(callback: TrainerCallback) -> bool:
    return type(callback).__module__.partition(".")[0] in _KNOWN
