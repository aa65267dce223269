"""Schedules by name, and the option `batch_size`."""

from collections.abc import Callable

import numpy as np

from mixer.schedules.base import Schedule
from mixer.schedules.constant import Constant
from mixer.schedules.function import Function
from mixer.utils.errors import wrong_type
from mixer.utils.registry import choose, known_rules, refuse_class


def schedule_classes() -> dict[str, type[Schedule]]:
    """Returns all schedules by name, including those of other packages; see `known_rules`."""
    return known_rules("mixer.schedules", Schedule, "schedules")


def as_schedule(batch_size: Schedule | str | int | Callable[[int, int], int] | None) -> Schedule:
    """Converts the option `batch_size` to a schedule.

    Args:
        batch_size: A schedule, the name of one that needs no arguments, a number of samples over all ranks, or
            `f(step, batch_size) -> int`; `None` is `Constant()`.

    Raises:
        ValueError: If there is no schedule of that name, it needs arguments, or the number is below 1.
        TypeError: If it is none of these.
    """
    if isinstance(batch_size, Schedule):
        return batch_size
    if isinstance(batch_size, str) and not batch_size[:1].isdecimal():  # "2.5" is no name
        return choose(batch_size, schedule_classes(), "batch_size", "schedule")
    if batch_size is None:
        return Constant()
    if isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool):
        return Constant(int(batch_size))
    refuse_class(batch_size, Schedule, "batch_size")
    if callable(batch_size):
        return Function(batch_size)
    raise wrong_type(
        "batch_size", f"must be a whole number, a schedule, its name, or f(step, batch_size), got {batch_size!r}."
    )
