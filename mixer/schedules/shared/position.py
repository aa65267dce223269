"""Position of a run, in the unit of a schedule."""

import math
from collections.abc import Sequence
from typing import Literal

from mixer.schedules.base import BatchObservation
from mixer.utils.errors import wrong_value

Unit = Literal["steps", "epochs", "samples", "tokens", "labels", "progress"]


def position(observation: BatchObservation, unit: Unit) -> float:
    """Returns the position of the run in the unit: 0 at the start."""
    counts = {
        "steps": observation.step,
        "epochs": observation.num_epochs_done,
        "samples": observation.num_samples,
        "tokens": observation.num_tokens,
        "labels": observation.num_labels,
        "progress": observation.progress,
    }
    return counts[unit]


def check_points(points: Sequence[float], unit: Unit) -> list[float]:
    """Refuses points that a run cannot pass one after the other.

    Args:
        points: Positions in the run.
        unit: Their unit.

    Raises:
        ValueError: If there is none, one is not above 0 (or above 1 for a progress), or they do not ascend.
    """
    positions = [float(point) for point in points]
    most, where = (1.0, "in (0, 1]") if unit == "progress" else (math.inf, "above 0")
    if not positions or not all(0.0 < point <= most and point < math.inf for point in positions):
        raise wrong_value(
            "points", f"must be {unit} {where}, at least one, got {positions}; initial= applies before the first."
        )
    if positions != sorted(set(positions)):
        raise wrong_value("points", f"must ascend, got {positions}.")
    return positions
