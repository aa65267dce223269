"""The optimizer's learning rate: follows the run's clock, scaled for the batch size."""

import warnings
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from transformers import TrainingArguments, get_scheduler
from transformers.optimization import GreedyLR
from transformers.trainer_utils import SchedulerType
from transformers.utils import logging

from mixer.measurements import check_requests
from mixer.mixture.clock import Clock
from mixer.schedules.base import Schedule
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.user_code import library_of

logger = logging.get_logger(__name__)


class ScheduledRate:
    """Sets the learning rate to the schedule's value at the clock's position times a batch-size factor.

    While the clock counts steps, the Trainer's own stepping remains in charge. Otherwise a schedule that is a function
    of the step (`LambdaLR`: every `lr_scheduler_type` but two) is evaluated at the clock's position, including between
    steps. Those two (`reduce_lr_on_plateau`, `greedy`) follow a metric instead, and only the factor applies.

    Args:
        scheduler: The Trainer's learning-rate schedule.
    """

    def __init__(self, scheduler: Any):
        self._scheduler = scheduler
        self.factor = 1.0  # current factor on the schedule's learning rate
        self._placed: tuple[float, float] | None = None

    @property
    def value(self) -> float:
        """Learning rate of the next optimizer step, for the first parameter group."""
        return float(self._scheduler.optimizer.param_groups[0]["lr"])

    def at(self, position: float) -> float:
        """Returns the schedule's own factor at a position in steps, 1 at its peak; NaN if it is no function of it."""
        if not isinstance(self._scheduler, LambdaLR):
            return float("nan")
        function = self._scheduler.lr_lambdas[0]
        return float(function(_place(function, position)))

    def place(self, position: float, factor: float) -> None:
        """Sets the learning rate of the next step.

        Args:
            position: Position of the schedule, in steps.
            factor: Factor on its learning rate.
        """
        if self._placed == (position, factor):
            return
        if isinstance(self._scheduler, LambdaLR):
            functions, bases = self._scheduler.lr_lambdas, self._scheduler.base_lrs
            places = [_place(function, position) for function in functions]
            self._scheduler.last_epoch = places[0]
            rates = zip(bases, functions, places, strict=True)
            _set(self._scheduler, [base * function(place) * factor for base, function, place in rates])
        elif not follows_metric(self._scheduler):
            logger.warning_once(
                f"A {type(self._scheduler).__name__} can only step, although the batch size has changed: the learning "
                "rate follows neither the data nor the batch size. Use an lr_scheduler_type, or a LambdaLR."
            )
        else:
            groups = self._scheduler.optimizer.param_groups
            _set(self._scheduler, [group["lr"] * (factor / self.factor) for group in groups])
        self._placed, self.factor = (position, factor), factor

    def moved(self) -> None:
        """Records that the Trainer has advanced the schedule."""
        self._placed = None


def new_learning_rate(args: TrainingArguments, num_steps: int) -> ScheduledRate:
    """Creates the learning-rate schedule of the arguments, for a run of so many steps."""
    options: Any = args.lr_scheduler_kwargs
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is stepped here
        num_warmup_steps = args.get_warmup_steps(num_steps)
        scheduler = get_scheduler(args.lr_scheduler_type, optimizer, num_warmup_steps, num_steps, options)
    return ScheduledRate(scheduler)


def decay_step(args: TrainingArguments, scheduler: Any, num_steps: int) -> int:
    """Finds the last step before the learning rate falls: where warmup-stable-decay begins to decay.

    Args:
        args: The training arguments.
        scheduler: The user's own learning-rate schedule, or `None` for that of the arguments.
        num_steps: Planned steps of the run.

    Returns:
        A step, from 0, whose rate is the highest of the run while that of the next is lower.

    Raises:
        ValueError: If the rate never falls, falls more than once, or is no function of the step.
    """
    own = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it
    rate = new_learning_rate(args, num_steps) if own is None else ScheduledRate(own)
    rates = np.array([rate.at(float(step)) for step in range(num_steps + 1)])
    falls = np.flatnonzero(np.diff(rates) < 0.0)
    if not len(falls) or (np.diff(rates[falls[0] :]) > 0.0).any():
        of_arguments = f"lr_scheduler_type={SchedulerType(args.lr_scheduler_type).value}"
        name = of_arguments if own is None else type(own).__name__
        raise InvalidValueError(
            f"'decay' is the moment at which the learning rate begins to fall for good, and that of {name} has none. "
            "Use warmup_stable_decay, cosine or linear, or give a share of the run in [0, 1].",
            option="decay",
        )
    return int(falls[0])


def decay_in_words(args: TrainingArguments, clock: Clock) -> str | None:
    """Says where the learning rate begins to fall if its phases are given in steps, and the run is counted in data.

    Args:
        args: The training arguments.
        clock: The clock of the run.
    """
    if clock.is_step_based or not any(name.endswith("_steps") for name in args.lr_scheduler_kwargs or {}):
        return None
    try:
        share = clock.decay_begins()
    except ValueError:  # it does not fall for good
        return None
    planned = clock.planned_steps
    return (
        f"The learning rate follows the data, not the steps: it begins to fall after {share:.1%} of the run, which "
        f"would be step {round(share * planned):,} of {planned:,} if all steps were as large as the first."
    )


def follows_metric(scheduler: Any) -> bool:
    """Whether a learning-rate schedule follows a metric."""
    return isinstance(scheduler, ReduceLROnPlateau | GreedyLR)


def check_scheduler(scheduler: Any) -> None:
    """Refuses a learning-rate schedule that cannot follow the data.

    Args:
        scheduler: The schedule, or `None` for one created by the Trainer.

    Raises:
        ValueError: If it is neither a function of the step nor follows a metric.
    """
    if scheduler is None or isinstance(scheduler, LambdaLR) or follows_metric(scheduler):
        return
    raise wrong_value(
        "optimizers",
        f": a {type(scheduler).__name__} can only step, but with a variable batch size, or a budget in samples or "
        "tokens, the learning rate must follow the data. Use an lr_scheduler_type, or a LambdaLR.",
    )


def _place(function: Any, position: float) -> Any:
    """Rounds positions for functions that may use a lookup table; those of transformers accept fractions."""
    return int(position) if position.is_integer() or library_of(function) != "transformers" else position


def _set(scheduler: Any, rates: list[Any]) -> None:
    groups = scheduler.optimizer.param_groups
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    scheduler._last_lr = [group["lr"] for group in groups]  # noqa: SLF001  # as torch's own step sets it


def check_schedule(schedule: Schedule, scheduler: Any) -> None:
    """Refuses a batch-size schedule that the learning rate cannot follow, or whose needs are no measurements.

    Args:
        schedule: Batch-size schedule.
        scheduler: The user's own learning-rate schedule, or `None` for one created by the Trainer.

    Raises:
        ValueError: If the learning rate cannot follow the batch size.
        TypeError: If its needs are no measurements.
    """
    check_requests(f"batch_size={schedule.name}", schedule.needs)
    if not schedule.is_constant:
        check_scheduler(scheduler)
