"""Shares that follow a curriculum over the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mixer.policies.contract import (
    Decision,
    Mixture,
    Observation,
    PolicyWithOptions,
    Weights,
    weights_array,
)
from mixer.utils.arrays import FloatArray


@dataclass(eq=False, repr=False)
class Scheduled(PolicyWithOptions):
    """Interpolates weights between points of the run, linearly or in steps.

    Args:
        points: Pairs of a progress in [0, 1], ascending, and the weights there (by name or in order). The first weights
            apply before the first point, the last ones after the last.
        interpolation: `"linear"` moves from point to point, `"step"` holds each point's weights until the next.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If there is no point, a progress is outside [0, 1] or they do not ascend; at the start of the run if
            weights do not fit the streams.

    Example:
        >>> policy = Scheduled([(0.0, {"web": 1, "code": 0}), (1.0, {"web": 1, "code": 1})])
    """

    points: Sequence[tuple[float, Weights]]
    interpolation: Literal["linear", "step"] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        progresses = _progresses(self.points)
        if not progresses or progresses != sorted(set(progresses)) or not 0.0 <= progresses[0] <= progresses[-1] <= 1.0:
            raise ValueError(f"points must have ascending progresses in [0, 1], at least one, got {progresses}.")
        self._progresses = np.array(progresses)
        self._table: FloatArray = np.zeros((len(progresses), 0))

    def start(self, mixture: Mixture) -> Decision:
        """Reads the points for these streams and returns the weights at progress 0; see `Policy.start`."""
        rows = [weights_array(weights, mixture.names, f"Scheduled at progress {at}") for at, weights in self.points]
        self._table = np.stack([row / row.sum() for row in rows])
        return Decision(self._weights_at(0.0))

    def update(self, observation: Observation) -> Decision:
        """Returns the weights at the present progress; see `Policy.update`."""
        return Decision(self._weights_at(observation.progress))

    def _weights_at(self, progress: float) -> FloatArray:
        if self.interpolation == "step":
            last = int(np.searchsorted(self._progresses, progress, side="right")) - 1
            row: FloatArray = self._table[max(last, 0)]
            return row
        return np.array([np.interp(progress, self._progresses, column) for column in self._table.T])


def _progresses(points: Sequence[tuple[float, Weights]]) -> list[float]:
    try:
        return [float(progress) for progress, _ in points]
    except (TypeError, ValueError):
        raise ValueError(
            f"points must be a list of (progress, weights), got {points!r}; such as [(0.0, first), (1.0, last)]."
        ) from None
