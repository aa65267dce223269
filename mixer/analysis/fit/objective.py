"""What a mixture is to be best for: one number of the losses of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixer.policies.contract import check_weights
from mixer.utils.arrays import BoolArray, FloatArray

AVERAGE, WORST = "average", "worst"


@dataclass(frozen=True)
class Objective:
    """One number of several losses, to be made small.

    Args:
        name: What it is called in tables.
        weights: `[num_losses]`, sum 1: how much each loss counts; those of weight 0 are not looked at.
        is_worst: Whether it is the largest of the losses that count, in place of their weighted mean.
    """

    name: str
    weights: FloatArray
    is_worst: bool = False

    @property
    def counts(self) -> BoolArray:
        """Which losses count: bool `[num_losses]`."""
        return self.weights > 0.0

    def __call__(self, losses: FloatArray) -> FloatArray:
        """Puts losses together.

        Args:
            losses: `[num_mixtures, num_losses]`.

        Returns:
            `[num_mixtures]`.
        """
        counted: FloatArray = losses[:, self.counts]
        together: FloatArray = counted.max(axis=1) if self.is_worst else counted @ self.weights[self.counts]
        return together


def make_objective(
    objective: str | Mapping[str, float], names: Sequence[str], by_default: Sequence[str] | None = None
) -> Objective:
    """Makes the objective that a user asks for.

    Args:
        objective: `"average"` or `"worst"` of the losses, weights of some of them by name, or those written
            `"NAME=weight,..."`. Weights are divided by their sum.
        names: Names of the losses.
        by_default: Those that `"average"` and `"worst"` are taken of; `None` for all.

    Returns:
        The objective.

    Raises:
        ValueError: If it is none of these, names a loss that there is not, or its weights cannot be.
    """
    if isinstance(objective, str) and objective in (AVERAGE, WORST):
        members = set(names if by_default is None else by_default)
        if not members:
            raise ValueError(f"objective={objective!r}: there is no loss to take it of.")
        weights = np.array([name in members for name in names], dtype=np.float64)
        return Objective(objective, weights / weights.sum(), is_worst=objective == WORST)
    given = _parse(objective) if isinstance(objective, str) else dict(objective)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(f"objective: there is no loss of {unknown}; there are losses of {list(names)}.")
    weights = np.array([given.get(name, 0.0) for name in names], dtype=np.float64)
    check_weights(weights, names, "objective")
    written = ", ".join(f"{name}={weight:g}" for name, weight in given.items())
    return Objective(written, weights / weights.sum())


def _parse(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, sign, number = part.rpartition("=")
        name = name.strip()
        try:
            weight = float(number)
        except ValueError:
            sign = ""
        if not (name and sign):
            raise ValueError(
                f"objective must be 'average', 'worst' or 'NAME=weight,...', got {text!r}: {part!r} is no NAME=weight."
            )
        if name in weights:
            raise ValueError(f"objective: {name!r} is given twice in {text!r}; give each loss one weight.")
        weights[name] = weight
    return weights
