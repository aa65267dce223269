"""How far a run is, in the unit in which a schedule counts."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

from mixer.schedules.base import BatchObservation

Unit = Literal["steps", "epochs", "samples", "tokens", "progress"]


def position(observation: BatchObservation, unit: Unit) -> float:
    """Gives how far the run is.

    Args:
        observation: What the last step showed.
        unit: What to count.

    Returns:
        The count: 0 at the start of the run.
    """
    counts = {
        "steps": observation.step,
        "epochs": observation.num_epochs_done,
        "samples": observation.num_samples,
        "tokens": observation.num_tokens,
        "progress": observation.progress,
    }
    return counts[unit]


def needs_of(unit: Unit) -> frozenset[str]:
    """Gives what has to be observed for a count.

    Args:
        unit: What is counted.

    Returns:
        Words of `Schedule.needs`.

    Raises:
        ValueError: If the unit is another word.
    """
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {list(get_args(Unit))}, got {unit!r}.")
    return frozenset({"tokens"}) if unit == "tokens" else frozenset()


def check_points(points: Sequence[float], unit: Unit) -> list[float]:
    """Refuses points that no run passes one after the other.

    Args:
        points: Positions in the run.
        unit: What they count.

    Returns:
        The points.

    Raises:
        ValueError: If there is none, one is not above 0 (or above 1 for a progress), or they do not ascend.
    """
    found = [float(point) for point in points]
    most, where = (1.0, "in (0, 1]") if unit == "progress" else (math.inf, "above 0")
    if not found or not all(0.0 < point <= most and point < math.inf for point in found):
        raise ValueError(f"points must be {unit} {where}, at least one, got {found}; before them initial= holds.")
    if found != sorted(set(found)):
        raise ValueError(f"points must ascend, got {found}.")
    return found
