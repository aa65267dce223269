"""The optimizer's learning rate on the run's clock, and as the batch size wants it."""

from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau
from transformers.optimization import GreedyLR
from transformers.utils import logging

logger = logging.get_logger(__name__)


class LearningRate:
    """Places the learning rate where the clock stands, times a factor for the batch size.

    What the Trainer does by itself, a step of the schedule a step, is left to it while the clock counts steps. Else
    a schedule that is a function of the step (`LambdaLR`: every `lr_scheduler_type` but two) is evaluated at the
    clock's place, between two steps too; those two, which follow a metric (`reduce_lr_on_plateau`, `greedy`), have no
    clock, and only the factor applies.

    Args:
        scheduler: The Trainer's learning-rate schedule.
    """

    def __init__(self, scheduler: Any):
        self._scheduler = scheduler
        self.factor = 1.0  # what the schedule's learning rate is multiplied by at present
        self._placed: tuple[float, float] | None = None

    @property
    def value(self) -> float:
        """The learning rate of the next optimizer step, of the first group of parameters."""
        return float(self._scheduler.optimizer.param_groups[0]["lr"])

    def at(self, position: float) -> float:
        """Gives the schedule's own factor at a step: 1 at its peak.

        Args:
            position: The step.

        Returns:
            The factor; NaN for a schedule that is no function of the step.
        """
        if not isinstance(self._scheduler, LambdaLR):
            return float("nan")
        function = self._scheduler.lr_lambdas[0]
        return float(function(_place(function, position)))

    def place(self, position: float, factor: float) -> None:
        """Sets the learning rate of the next step.

        Args:
            position: The step at which the schedule stands.
            factor: What its learning rate is multiplied by.
        """
        if self._placed == (position, factor):
            return
        if isinstance(self._scheduler, LambdaLR):
            self._evaluate(self._scheduler, position, factor)
        elif not follows_metric(self._scheduler):
            logger.warning_once(
                f"A {type(self._scheduler).__name__} goes on step by step although the batch size has changed: the "
                "learning rate follows neither the data nor the size. Use an lr_scheduler_type, or a LambdaLR."
            )
        else:
            _set(self._scheduler, [group["lr"] * (factor / self.factor) for group in _groups(self._scheduler)])
        self._placed, self.factor = (position, factor), factor

    def moved(self) -> None:
        """Notes that the Trainer has moved the schedule on."""
        self._placed = None

    def _evaluate(self, scheduler: LambdaLR, position: float, factor: float) -> None:
        functions, bases = scheduler.lr_lambdas, scheduler.base_lrs
        places = [_place(function, position) for function in functions]
        scheduler.last_epoch = places[0]
        rates = zip(bases, functions, places, strict=True)
        _set(scheduler, [base * function(place) * factor for base, function, place in rates])


def follows_metric(scheduler: Any) -> bool:
    """Says whether a learning-rate schedule follows a metric in place of a clock.

    Args:
        scheduler: The schedule.

    Returns:
        Whether it does.
    """
    return isinstance(scheduler, ReduceLROnPlateau | GreedyLR)


def check_scheduler(scheduler: Any) -> None:
    """Refuses a learning-rate schedule that cannot be put on a clock of data.

    Args:
        scheduler: The schedule, or `None` for one that the Trainer makes.

    Raises:
        ValueError: If it is neither a function of the step nor follows a metric.
    """
    if scheduler is None or isinstance(scheduler, LambdaLR) or follows_metric(scheduler):
        return
    raise ValueError(
        f"optimizers: a {type(scheduler).__name__} can only go step by step, but with a batch size that changes, or a "
        "budget in samples or tokens, the learning rate follows the data. Give an lr_scheduler_type, or a LambdaLR."
    )


def _place(function: Any, position: float) -> Any:
    """Gives whole steps to functions that may look them up in a table; those of transformers take parts of steps."""
    name: str = getattr(getattr(function, "func", function), "__module__", None) or ""
    return position if name.startswith("transformers.") and not position.is_integer() else int(position)


def _groups(scheduler: LRScheduler | Any) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = scheduler.optimizer.param_groups
    return groups


def _set(scheduler: Any, rates: list[Any]) -> None:
    for group, rate in zip(_groups(scheduler), rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    scheduler._last_lr = [group["lr"] for group in _groups(scheduler)]
