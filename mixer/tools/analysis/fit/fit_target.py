"""What a fixed mixture is to minimise, and its prediction by a fit of each loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mixer.policies.contract import weights_array
from mixer.policies.objective import Objective
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import require


@dataclass(frozen=True)
class FitTarget:
    """The weighted mean, or the largest, of several losses; less is better.

    Args:
        name: Its name in tables.
        weights: Weights of the losses that count, by name, sum 1.
        is_worst: Whether it is the largest of these losses.
    """

    name: str
    weights: dict[str, float]
    is_worst: bool = False

    def __call__(self, losses: FloatArray) -> FloatArray:
        """Gives the objective `[num_mixtures]` of the losses that count `[num_mixtures, num_losses]`."""
        return np.asarray(losses.max(axis=1) if self.is_worst else losses @ np.array([*self.weights.values()]))

    def slopes(self, losses: FloatArray) -> FloatArray:
        """Gives its derivatives `[num_mixtures, num_losses]` by the losses."""
        if self.is_worst:
            return np.asarray(losses == losses.max(axis=1, keepdims=True), dtype=np.float64)
        return np.tile([*self.weights.values()], (len(losses), 1))


def target_of(
    objective: str | Mapping[str, float] | Objective, names: Sequence[str], streams: Sequence[str]
) -> FitTarget:
    """Makes a target of its name, weights or declaration; see `fit_mixture`."""
    if isinstance(objective, Objective):
        made = target_of(objective.importance or "average", names, streams)
        return replace(made, name="the declared objective", is_worst=objective.kind == "worst")
    if isinstance(objective, str) and objective in ("average", "worst"):
        members = [name for name in names if name in streams] or names
        return FitTarget(objective, dict.fromkeys(members, 1.0 / len(members)), is_worst=objective == "worst")
    given = parse_numbers("objective", objective) if isinstance(objective, str) else dict(objective)
    require(bool(given), "objective", "at least one loss", given)
    by_name = dict(zip(given, weights_array([*given.values()], [*given], "objective").tolist(), strict=True))
    unknown = [name for name in by_name if name not in names]
    require(not unknown, "objective", f"one or more of the losses {list(names)}", unknown)
    total = sum(by_name.values())
    text = ", ".join(f"{name}={weight:g}" for name, weight in by_name.items())
    return FitTarget(text, {name: weight / total for name, weight in by_name.items() if weight > 0.0})


def parse_numbers(option: str, text: str) -> dict[str, float]:
    """Parses `NAME=number,...`.

    Raises:
        ValueError: If it is none, or a name is given twice.
    """
    numbers: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            name = ""
        also = "'average', 'worst' or " if option == "objective" else ""
        require(bool(name), option, f"{also}'NAME=number,...'", text)
        require(name not in numbers, option, f"one number for {name!r}", text)
        numbers[name] = value
    return numbers
