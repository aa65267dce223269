"""The one callback of a mixing trainer: it closes every update before the others see it."""

from collections.abc import Callable
from math import floor, isnan
from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from mixer.controller import Mixing

logger = logging.get_logger(__name__)

_MAX_NAMES = 4


class MixingCallback(TrainerCallback):
    """Closes each update: the policy decides, the ledger is written, the epoch is put right, the bar shows coverage.

    It comes before all other callbacks, so that those see the new state and what they change rules the next update.

    Args:
        begin: Takes up where the run stood, after the Trainer has set everything back.
        close_update: Counts the update that was just trained.
        mixing: Gives the controller of the present run.
        end_epoch: Is told that the loop's epoch ends, before the other callbacks are.
        callbacks: Gives the trainer's callbacks, among which the progress bar is found.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        close_update: Callable[[], None],
        mixing: Callable[[], Mixing],
        end_epoch: Callable[[], None],
        callbacks: Callable[[], list[TrainerCallback]],
    ):
        self._begin = begin
        self._close_update = close_update
        self._mixing = mixing
        self._end_epoch = end_epoch
        self._callbacks = callbacks

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes up where the run stood."""
        self._begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Closes the update, and the run if the streams are exhausted."""
        before = self._mixing().clock.progress
        self._close_update()
        mixing = self._mixing()
        clock = mixing.clock
        state.epoch = clock.epoch
        if not clock.counts_steps:
            state.max_steps = clock.max_steps
            _show_intervals(args, state, before, clock.progress)
        if mixing.is_exhausted:
            if state.global_step < state.max_steps and state.is_world_process_zero:
                logger.warning(
                    "The streams are exhausted after %d of %d updates; the learning rate was laid out for all of them.",
                    state.global_step,
                    state.max_steps,
                )
            # The Trainer evaluates and saves at the end as it does after its last step.
            state.max_steps = state.global_step
            control.should_training_stop = True
        for callback in self._callbacks():
            bar: Any = callback.training_bar if isinstance(callback, ProgressCallback) else None
            if bar is not None:
                bar.total = state.max_steps
                bar.set_postfix_str(coverage_text(mixing), refresh=False)
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Takes back the sign by which the loop was told to end the epoch."""
        self._end_epoch()
        return control


def _show_intervals(args: TrainingArguments, state: TrainerState, before: float, after: float) -> None:
    """Sets when the Trainer logs, evaluates and saves next, where that is a share of a run of unknown steps.

    It does so at steps that are a multiple of these numbers: now, if a multiple of the share was passed.
    """
    for kind in ("logging", "eval", "save"):
        share = getattr(args, f"{kind}_steps")
        if share is not None and 0 < share < 1:
            is_due = floor(after / share + 1e-9) > floor(before / share + 1e-9)
            setattr(state, f"{kind}_steps", state.global_step + (not is_due))


def coverage_text(mixing: Mixing) -> str:
    """Writes the streams' coverage on part of a line.

    Args:
        mixing: The controller.

    Returns:
        Each stream's coverage in per cent (its rows, where nobody knows how many it has), or the least and the most of
        many streams.
    """
    if len(mixing.names) <= _MAX_NAMES:
        seen = zip(mixing.coverage.items(), mixing.seen.tolist(), strict=True)
        parts = (f"{name} {count:,} rows" if isnan(share) else f"{name} {share:.0%}" for (name, share), count in seen)
        return "coverage " + " ".join(parts)
    coverage = {name: share for name, share in mixing.coverage.items() if not isnan(share)}
    if not coverage:
        return f"{int(mixing.seen.sum()):,} rows"
    least, most = min(coverage, key=lambda n: coverage[n]), max(coverage, key=lambda n: coverage[n])
    return f"coverage {least} {coverage[least]:.0%} … {most} {coverage[most]:.0%}"
