"""A constant batch size."""

from dataclasses import dataclass, field

from mixer.schedules.base import BatchDecision, BatchObservation, ScheduleWithOptions
from mixer.schedules.limits import check_whole


@dataclass(eq=False, repr=False)
class Constant(ScheduleWithOptions):
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

    batch_size: int | None = None
    initial: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size)
        self.initial = self.batch_size
        super().__post_init__()

    def update(self, observation: BatchObservation) -> BatchDecision:
        """Keeps the size; see `Schedule.update`."""
        return BatchDecision(observation.batch_size)
