"""Evaluation losses of sets that are no streams."""

from collections.abc import Mapping
from dataclasses import dataclass

from mixer.measurements.measurement import Measurement


@dataclass(frozen=True)
class EvaluationSetLoss(Measurement[Mapping[str, float]]):
    """Losses of an evaluation since the last observation on sets that are no streams, by name.

    Args:
        sets: Names of the evaluation sets that there must be.
    """

    requires = frozenset({"evaluations"})
    costs = "the evaluations"

    sets: tuple[str, ...] = ()
