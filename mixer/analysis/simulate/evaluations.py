"""After which planned steps a run evaluates."""

import math

from transformers import TrainingArguments

from mixer.mixture.clock import Clock


class Evaluations:
    """Says when the Trainer evaluates.

    Args:
        args: The training arguments.
        clock: The clock of the run.
    """

    def __init__(self, args: TrainingArguments, clock: Clock):
        self._args, self._clock = args, clock
        self._strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
        self._progress = 0.0

    @property
    def at_start(self) -> bool:
        """Whether it does before the first step."""
        return bool(self._args.eval_on_start)

    def is_due(self) -> bool:
        """Says whether it does after the step that was just counted; to be asked after each."""
        clock, before = self._clock, self._progress
        self._progress = clock.progress
        if self._strategy == "epoch":
            return clock.at_epoch_end and self._args.eval_delay <= clock.epoch
        if self._strategy != "steps" or clock.step < self._args.eval_delay:
            return False
        steps = float(self._args.eval_steps or self._args.logging_steps)
        if steps >= 1.0:
            return clock.step % int(steps) == 0
        if clock.counts_steps:
            return clock.step % math.ceil(clock.planned_steps * steps) == 0
        return math.floor(clock.progress / steps + 1e-9) > math.floor(before / steps + 1e-9)
