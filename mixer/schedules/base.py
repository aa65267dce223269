"""The schedule interface: observations, decisions, and the base class of batch-size schedules."""

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, get_args

from mixer.measurements.measurement import Needs, Observed, at_interval
from mixer.schedules.limits import Limits
from mixer.utils.ranges import check_choice, check_options
from mixer.utils.recorded_arguments import KeepsArguments
from mixer.utils.saved_state import HasState

LearningRateRule = Literal["none", "linear", "sqrt"]


@dataclass(frozen=True)
class BatchObservation(Observed):
    """What a step has shown, from which a schedule decides on the next one.

    What the schedule asked for in `needs` is read by the class of the request: `observation[MeanLoss]`.

    Args:
        step: Number of completed steps: the index of the step that is decided on.
        progress: Completed share of the run's budget, in [0, 1].
        num_epochs_done: Completed epochs of the mixture.
        num_samples: Samples so far.
        num_tokens: Tokens so far.
        batch_size: Planned size of the last step (which may have had fewer samples at the end of an epoch).
        num_labels: Labels so far that the loss learned.
        measured: Results by the class of their request.
    """

    step: int
    progress: float
    num_epochs_done: int
    num_samples: int
    num_tokens: int
    batch_size: int
    num_labels: int = 0


@dataclass(frozen=True)
class BatchDecision:
    """A schedule's decision for the next step.

    Args:
        batch_size: Samples over all ranks, before bounds and rounding.
        learning_rate_factor: Factor on the run's learning rate; `None` applies the schedule's `learning_rate` rule.
    """

    batch_size: float
    learning_rate_factor: float | None = None


class Schedule(KeepsArguments, HasState, ABC):
    """Base class of batch-size schedules.

    A schedule knows no model, trainer, file or global random state. A subclass lists what must be measured for it in
    `needs`, such as `(MeanLoss(), GradientNorm())`: requests of `mixer.measurements`, or of your own. With `is_exact`
    its sizes are exact: less than one sample per rank is an error. With `unit = "epochs"` it only decides at the ends
    of epochs; the old size then determines the dropped rest of an epoch, and the last step shows its end (otherwise the
    new size determines the rest). With `unit = "tokens"` samples without tokens are an error;
    `"labels"` counts the tokens that the loss learns.

    Args:
        initial: Size of the first steps, for which the learning rate was chosen; `None` is
            `per_device_train_batch_size` × `gradient_accumulation_steps` × ranks.
        minimum: Least size; `None` is one sample per rank.
        maximum: Largest size; `None` is no limit.
        granularity: Sizes are multiples of it.
        max_growth: Largest factor of growth per step; `None` is no limit.
        learning_rate: How the learning rate follows the size b: `"none"`, `"linear"` (times b / initial, for SGD: Goyal
            et al. 2017, arXiv:1706.02677, sec. 2.1) or `"sqrt"` (times its root, for Adam: Malladi et al. 2022,
            arXiv:2205.10287).

    Raises:
        ValueError: If the bounds contradict each other, or a value is outside its range.
        TypeError: If a size is no whole number.
    """

    _state_name = "schedule state"
    # The first size has another default on other numbers of ranks.
    remembered: ClassVar[tuple[str, ...]] = ("_initial",)

    needs: Needs = ()
    is_constant: bool = False
    is_exact: bool = False
    unit: str | None = None
    positions: ClassVar[tuple[str, ...]] = ()  # arguments that are positions in a run, or lengths, in the unit

    def __init__(
        self,
        *,
        initial: int | None = None,
        minimum: int | None = None,
        maximum: int | None = None,
        granularity: int = 1,
        max_growth: float | None = None,
        learning_rate: LearningRateRule = "none",
    ):
        check_choice("learning_rate", learning_rate, get_args(LearningRateRule))
        self.limits = Limits(minimum, maximum, granularity, max_growth)
        self.limits.check_initial(initial)
        self.initial = None if initial is None else int(initial)
        self.learning_rate: LearningRateRule = learning_rate

    @property
    def name(self) -> str:
        """Name of the schedule in checkpoints and reports."""
        return type(self).__name__

    def start(self, initial: int) -> BatchDecision:
        """Starts a new run.

        Args:
            initial: The first size, for which the learning rate was chosen.

        Returns:
            The decision for step 0.
        """
        self._initial = initial
        return BatchDecision(initial)

    @abstractmethod
    def update(self, observation: BatchObservation) -> BatchDecision:
        """Decides for the next step.

        Args:
            observation: Measurements of the last step.

        Returns:
            The decision for step `observation.step`.
        """

    def learning_rate_factor(self, batch_size: int, initial: int) -> float:
        """Returns the factor on the learning rate, by the schedule's `learning_rate` rule.

        Args:
            batch_size: Size of the next step.
            initial: Size for which the learning rate was chosen.
        """
        ratio = batch_size / initial
        return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.learning_rate]


@dataclass(eq=False, repr=False)
class ScheduleWithOptions(Schedule):
    """Base class of the schedules of this package, which declare their arguments; see `check_options`.

    An argument `interval_steps` is the interval of what is measured.
    """

    _: KW_ONLY
    initial: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    granularity: int = 1
    max_growth: float | None = None
    learning_rate: LearningRateRule = "none"

    def __post_init__(self) -> None:
        super().__init__(
            initial=self.initial,
            minimum=self.minimum,
            maximum=self.maximum,
            granularity=self.granularity,
            max_growth=self.max_growth,
            learning_rate=self.learning_rate,
        )
        check_options(self)
        self.needs = at_interval(self.needs, self)
