"""Batch-size warm-up that follows the critical batch size."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from mixer.schedules.base import BatchDecision, BatchObservation, LearningRateRule, ScheduleWithOptions
from mixer.schedules.shared.position import Unit, check_points, position
from mixer.utils.errors import wrong_value


@dataclass(eq=False, repr=False)
class CriticalBatchWarmup(ScheduleWithOptions):
    """Changes to fixed sizes at fixed token counts, at which the critical batch size has reached them.

    The critical batch size is near 0 at first and grows fast (Merrill et al. 2025, arXiv:2505.23971): a run that starts
    with a small batch and doubles it as the critical size allows takes fewer steps to the same loss. Adam's learning
    rate grows with the root of the size there, the default here. Let the run's own learning-rate schedule count tokens
    or progress too, since steps become larger.

    The bounds (`initial`, `minimum`, `maximum`, `granularity`, `max_growth`) are those of `Schedule`.

    Args:
        sizes: Size from each point on: a mapping, or pairs, of a position above 0, ascending, and a growing size.
        unit: Unit of the positions: `"tokens"`, `"labels"`, `"samples"`, `"steps"`, `"epochs"` or `"progress"`.
        learning_rate: How the learning rate follows the size; see `Schedule`.

    Raises:
        ValueError: If points do not ascend, sizes do not grow (from a default first size: checked after the first
            step), or a size is outside the bounds.
        TypeError: If a size is no whole number.

    Example:
        >>> schedule = CriticalBatchWarmup({168e9: 2048, 503e9: 4096}, initial=1024)
    """

    positions = ("sizes",)

    sizes: Mapping[float, int] | Sequence[tuple[float, int]]
    _: KW_ONLY
    unit: Unit = "tokens"
    learning_rate: LearningRateRule = "sqrt"

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = list(self.sizes.items() if isinstance(self.sizes, Mapping) else self.sizes)
        self._points = check_points([point for point, _ in pairs], self.unit)
        self._sizes = [size for _, size in pairs]
        for point, size in pairs:
            self.limits.check_size(f"size at {point:g} {self.unit}", size)
        self._check_growth(self.initial)

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Returns the size of the last passed point; see `Schedule.update`."""
        # Not in start(): a run that is resumed on more ranks starts with another default size.
        self._check_growth(self._initial)
        num_passed = bisect_right(self._points, position(observation, self.unit))
        return BatchDecision([self._initial, *self._sizes][num_passed])

    def _check_growth(self, initial: int | None) -> None:
        sizes = self._sizes if initial is None else [initial, *self._sizes]
        if sizes != sorted(set(sizes)):
            raise wrong_value(
                "sizes", f"must grow from point to point, got {sizes}; initial={initial} is the first one."
            )
