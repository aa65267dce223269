"""Batch-size warm-up that follows the critical batch size."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Unpack

from mixer.schedules.base import AllBounds, BatchDecision, BatchObservation, LearningRateRule, Schedule
from mixer.schedules.shared.position import Unit, check_points, needs_of, position


class CriticalBatchWarmup(Schedule):
    """Changes to fixed sizes at fixed token counts, at which the critical batch size has reached them.

    The critical batch size is near 0 at first and grows fast (Merrill et al. 2025, arXiv:2505.23971): a run that starts
    with a small batch and doubles it as the critical size allows takes fewer steps to the same loss. Adam's learning
    rate grows with the root of the size there, the default here. Let the run's own learning-rate schedule count tokens
    or progress too, since steps become larger.

    Args:
        sizes: Size from each point on: a mapping, or pairs, of a position above 0, ascending, and a growing size.
        unit: Unit of the positions: `"tokens"`, `"samples"`, `"steps"`, `"epochs"` or `"progress"`.
        learning_rate: How the learning rate follows the size; see `Schedule`.
        **bounds: See `Schedule`.

    Raises:
        ValueError: If points do not ascend, sizes do not grow (from a default first size: checked after the first
            step), or a size is outside the bounds.
        TypeError: If a size is no whole number.

    Example:
        >>> schedule = CriticalBatchWarmup({168e9: 2048, 503e9: 4096}, initial=1024)
    """

    def __init__(
        self,
        sizes: Mapping[float, int] | Sequence[tuple[float, int]],
        *,
        unit: Unit = "tokens",
        learning_rate: LearningRateRule = "sqrt",
        **bounds: Unpack[AllBounds],
    ):
        super().__init__(learning_rate=learning_rate, **bounds)
        self.needs = needs_of(unit)
        pairs = list(sizes.items() if isinstance(sizes, Mapping) else sizes)
        self.points = check_points([point for point, _ in pairs], unit)
        self.sizes = [size for _, size in pairs]
        for point, size in pairs:
            self.limits.check_size(f"size at {point:g} {unit}", size)
        self.unit: Unit = unit
        self._check_growth(self.initial)

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Returns the size of the last passed point; see `Schedule.update`."""
        # Not in start(): a run that is resumed on more ranks starts with another default size.
        self._check_growth(self._initial)
        num_passed = bisect_right(self.points, position(observation, self.unit))
        return BatchDecision([self._initial, *self.sizes][num_passed])

    def _check_growth(self, initial: int | None) -> None:
        sizes = self.sizes if initial is None else [initial, *self.sizes]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"sizes must grow from point to point, got {sizes}; initial={initial} is the first one.")
