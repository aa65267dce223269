"""The batch sizes that `benchmarks.quality.batch_size` compares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mixer.schedules import (
    AdaBatch,
    Constant,
    CriticalBatchWarmup,
    LossChange,
    Ramp,
    Schedule,
    Seesaw,
    SmoothedLossChange,
)

SMALL, LARGE = 8, 64


@dataclass(frozen=True)
class Configuration:
    """What a run is compared by.

    Args:
        schedule: Makes the batch-size schedule.
        learning_rate_factor: What the base learning rate is multiplied by from the start.
    """

    schedule: Callable[[], Schedule]
    learning_rate_factor: float = 1.0


def configurations() -> dict[str, Configuration]:
    """Lists what is compared. Every schedule goes from the small size to the large one, at points fixed beforehand.

    Returns:
        Configurations by name; the first is the baseline.
    """
    bounds: dict[str, Any] = {"initial": SMALL, "maximum": LARGE}
    quarters, doublings = [0.25, 0.5, 0.75], {0.125: 2 * SMALL, 0.25: 4 * SMALL, 0.5: LARGE}
    found = {
        f"constant {SMALL}": Configuration(lambda: Constant(SMALL)),
        f"constant {LARGE}": Configuration(lambda: Constant(LARGE)),
        f"constant {LARGE}, sqrt": Configuration(lambda: Constant(LARGE), (LARGE / SMALL) ** 0.5),
        "AdaBatch, none": Configuration(lambda: AdaBatch(quarters, unit="progress", learning_rate="none", **bounds)),
        "AdaBatch, linear": Configuration(lambda: AdaBatch(quarters, unit="progress", **bounds)),
    }
    makers: dict[str, Callable[..., Schedule]] = {
        "Ramp": lambda **options: Ramp(LARGE, 0.5, unit="progress", **options),
        # By epochs, as published, it would decide nothing in a single pass.
        "LossChange": lambda **options: LossChange(interval=1, unit="steps", **options),
        # The defaults are for thousands of steps; these decide some twenty times in a run of this length.
        "SmoothedLossChange": lambda **options: SmoothedLossChange(decay=0.95, interval=40, factor=1.5, **options),
        "CriticalBatchWarmup": lambda **options: CriticalBatchWarmup(doublings, unit="progress", **options),
    }
    for name, maker in makers.items():
        for rule in ("none", "sqrt"):
            found[f"{name}, {rule}"] = Configuration(
                lambda maker=maker, rule=rule: maker(learning_rate=rule, **bounds)  # type: ignore[misc]
            )
    return {**found, "Seesaw, its own": Configuration(lambda: Seesaw(**bounds))}
