"""The learning rate that a run's arguments lay out, without a model."""

import math
import warnings
from typing import Any

import torch
from transformers import TrainingArguments, get_scheduler

from mixer.mixture.controller import Mixing
from mixer.mixture.learning_rate import LearningRate


class PlannedLearningRate:
    """The learning rate of planned steps.

    Args:
        args: The training arguments.
        planned_steps: Steps for which it is laid out.
    """

    def __init__(self, args: TrainingArguments, planned_steps: int):
        self._peak = args.learning_rate
        options: Any = args.lr_scheduler_kwargs
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing is stepped here
            scheduler = get_scheduler(
                args.lr_scheduler_type,
                optimizer=optimizer,
                num_warmup_steps=args.get_warmup_steps(planned_steps),
                num_training_steps=planned_steps,
                scheduler_specific_kwargs=options,
            )
        self._schedule = LearningRate(scheduler)

    @property
    def is_known(self) -> bool:
        """Whether it is a function of the step: one that follows a metric is not known before the run."""
        return not math.isnan(self.at(0.0))

    def at(self, position: float) -> float:
        """Gives the schedule's factor at a step, 1 at its peak; see `LearningRate.at`."""
        return self._schedule.at(position)

    def of(self, mixing: Mixing) -> float:
        """Gives the learning rate of the next step.

        Args:
            mixing: The controller.

        Returns:
            The rate; NaN where it is not known.
        """
        factor = 1.0 if mixing.clock.counts_steps else mixing.learning_rate_factor
        return self._peak * self.at(mixing.clock.schedule_position) * factor
