"""A constant batch size."""

from mixer.schedules.base import BatchDecision, BatchObservation, LearningRateRule, Schedule
from mixer.schedules.limits import check_whole


class Constant(Schedule):
    """Keeps one size throughout the run, unless another one is set by hand.

    Args:
        batch_size: The size; `None` is `per_device_train_batch_size` × `gradient_accumulation_steps` × ranks.
        learning_rate: How the learning rate follows a size that is set by hand; see `Schedule`.
        minimum: Least size that can be set.
        maximum: Largest size that can be set.
        granularity: Sizes are multiples of it.
        max_growth: Largest factor of growth per step.

    Raises:
        ValueError: If the bounds contradict each other, or a value is outside its range.
        TypeError: If a size is no whole number.
    """

    is_constant = True
    is_exact = True

    def __init__(
        self,
        batch_size: int | None = None,
        *,
        learning_rate: LearningRateRule = "none",
        minimum: int | None = None,
        maximum: int | None = None,
        granularity: int = 1,
        max_growth: float | None = None,
    ):
        if batch_size is not None:
            check_whole("batch_size", batch_size)
        super().__init__(
            initial=batch_size,
            minimum=minimum,
            maximum=maximum,
            granularity=granularity,
            max_growth=max_growth,
            learning_rate=learning_rate,
        )

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Keeps the size; see `Schedule.update`."""
        return BatchDecision(observation.batch_size)
