"""The result of a step: its counts, losses and measurements, before the policy decides on the next one."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixer.loading.loaded_step import StepCounts
from mixer.mixture.step_plan import Plan
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.device import to_host


@dataclass(frozen=True)
class StepResult:
    """A step after its backward.

    Args:
        plan: Its plan.
        contents: Its items and tokens, over all ranks.
        loss_sums: `[num_streams + 1]`, on the device: the sum of each stream's item losses, and last the mean over
            all items by the loss that was back-propagated (before loss weights).
        learning_rate: The learning rate of its optimizer step, of the first group of parameters.
        learning_rate_factor: Factor of the batch size on it.
        item_factors: `[num_streams]`: weight of a stream's item in that mean loss; `None` if all are one.
        measured: bool `[num_streams]`: streams with measured losses; `None` for all.
    """

    plan: Plan
    contents: StepCounts
    loss_sums: Tensor
    learning_rate: float
    learning_rate_factor: float
    item_factors: FloatArray | None = None
    measured: BoolArray | None = None

    @functools.cached_property
    def sums(self) -> FloatArray:
        """`[num_streams + 1]`: `loss_sums`, read from the device on first use, for which the host waits."""
        return to_host([self.loss_sums])[0]

    @functools.cached_property
    def losses(self) -> FloatArray:
        """`[num_streams]`: mean losses; NaN without items or measurement."""
        return self._means if self.measured is None else np.where(self.measured, self._means, np.nan)

    @functools.cached_property
    def _means(self) -> FloatArray:
        sums, items = self.sums[:-1], self.contents.items
        means: FloatArray = np.divide(sums, items, out=np.full(len(sums), np.nan), where=items > 0)
        return means

    def bad_streams(self) -> Int64Array:
        """Gives the ids of the streams with a loss that is not finite, but for those of loss weight 0."""
        loss_weights = self.plan.loss_weights
        counts = self.contents.items > 0 if loss_weights is None else (self.contents.items > 0) & (loss_weights != 0)
        return np.flatnonzero(counts & ~np.isfinite(self._means))  # of streams that are not measured: 0, or not finite


def read_together(results: Sequence[StepResult], numbers: Sequence[Tensor | float | None]) -> list[float | None]:
    """Reads what steps left on the device, so that the host waits for it once.

    Args:
        results: The steps; afterwards their `sums` are known.
        numbers: Scalars to read with them.

    Returns:
        The scalars as Python's numbers.
    """
    unread = [result for result in results if "sums" not in vars(result)]
    scalars = [number for number in numbers if isinstance(number, Tensor)]
    values = iter(to_host([*(result.loss_sums for result in unread), *scalars]))
    for result in unread:
        vars(result)["sums"] = next(values)
    return [float(next(values)) if isinstance(number, Tensor) else number for number in numbers]
