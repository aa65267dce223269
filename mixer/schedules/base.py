"""What every batch-size schedule is: a rule from what the run showed to the size of the next step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from mixer.schedules.limits import Limits
from mixer.utils.recorded_arguments import KeepsArguments

LearningRateRule = Literal["none", "linear", "sqrt"]


@dataclass(frozen=True)
class GradientNoise:
    """How much of a gradient is signal, and how much is noise, of the whole mixture.

    Args:
        squared_norm: Unbiased estimate of `||g||²`, the squared norm of the true gradient.
        variance: Estimate of `tr Σ`, the variance of a single sample's gradient.
    """

    squared_norm: float
    variance: float


@dataclass(frozen=True)
class BatchObservation:
    """What a schedule sees after a step. It rules the next one with what it concludes.

    Args:
        step: Number of steps done, which is the index of the step that the decision rules.
        progress: Share of the run's budget that is done, in [0, 1].
        num_epochs_done: Number of epochs of the mixture that have ended.
        num_samples: Samples so far.
        num_tokens: Tokens so far.
        batch_size: The size that ruled the last step (which had fewer samples if it was the rest of an epoch).
        loss: Mean loss per item of the last step over all streams; NaN where there is none, and for a schedule that
            does not need `"loss"`.
        gradient_norm: Norm of the last step's gradient before clipping; NaN where it is not measured.
        learning_rate: Factor of the run's own learning-rate schedule for the next step, without what the batch size
            does to it: 1 at its peak. NaN where the optimizer is scheduled by something else.
        last_learning_rate: The same of the last step; NaN where it is not known.
        noise: Signal and noise of the gradient, if they were measured in the last step.
    """

    step: int
    progress: float
    num_epochs_done: int
    num_samples: int
    num_tokens: int
    batch_size: int
    loss: float = math.nan
    gradient_norm: float = math.nan
    learning_rate: float = math.nan
    last_learning_rate: float = math.nan
    noise: GradientNoise | None = None


@dataclass(frozen=True)
class BatchDecision:
    """What a schedule decides for the next step.

    Args:
        batch_size: Samples over all ranks, before bounds and rounding.
        learning_rate_factor: What the run's learning rate is multiplied by; `None` leaves that to the schedule's
            `learning_rate` rule.
    """

    batch_size: float
    learning_rate_factor: float | None = None


class Bounds(TypedDict, total=False):
    """Keyword arguments that a schedule passes on to `Schedule`, where they are explained, except `maximum`."""

    initial: int | None
    minimum: int | None
    granularity: int
    max_growth: float | None


class AllBounds(Bounds, total=False):
    """Keyword arguments that a schedule passes on to `Schedule`, where they are explained."""

    maximum: int | None


class Schedule(KeepsArguments, ABC):
    """A batch-size schedule.

    It knows no model, trainer, file or global random state. A subclass says in `needs` what has to be observed for
    it: `"loss"`, `"gradient_norm"`, `"learning_rate"`, `"tokens"` or `"gradient_noise"`. One that says `is_exact`
    means its sizes to the sample: fewer than one a rank are an error, not raised to it. One that says `unit = "epochs"`
    decides at epochs' ends alone; where the rest of an epoch is dropped, it is by the old size, and the end is shown
    with the last step (of others, the new size says what is dropped). What costs much is measured in steps after
    which `step` is a multiple of `interval_steps`, what costs next to nothing in every step.

    Args:
        initial: Size of the first steps, for which the learning rate was chosen; `None` takes
            `per_device_train_batch_size` × `gradient_accumulation_steps` × ranks.
        minimum: Least size; `None` is one sample a rank.
        maximum: Largest size; `None` is none.
        granularity: Sizes are multiples of it.
        max_growth: Largest factor by which the size grows from a step to the next; `None` is none.
        learning_rate: How the learning rate follows the size b: not at all, `"linear"` (times b / initial, for SGD:
            Goyal et al. 2017, arXiv:1706.02677, sec. 2.1) or `"sqrt"` (times its root, for Adam: Malladi et al. 2022,
            arXiv:2205.10287).

    Raises:
        ValueError: If the bounds contradict each other, or a value is outside its range.
        TypeError: If a size is no whole number.
    """

    needs: frozenset[str] = frozenset()
    is_constant: bool = False
    is_exact: bool = False
    unit: str | None = None
    interval_steps: int = 1

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
        if learning_rate not in ("none", "linear", "sqrt"):
            raise ValueError(f"learning_rate must be 'none', 'linear' or 'sqrt', got {learning_rate!r}.")
        self.limits = Limits(minimum, maximum, granularity, max_growth)
        self.limits.check_initial(initial)
        self.initial = None if initial is None else int(initial)
        self.learning_rate: LearningRateRule = learning_rate

    @property
    def name(self) -> str:
        """What the schedule is called in checkpoints and reports."""
        return type(self).__name__

    def start(self, initial: int) -> BatchDecision:
        """Forgets any earlier run and decides for the first step.

        Args:
            initial: The size to begin with, for which the learning rate was chosen.

        Returns:
            The decision for step 0.
        """
        self._initial = initial
        return BatchDecision(initial)

    @abstractmethod
    def update(self, observation: BatchObservation) -> BatchDecision:
        """Decides for the next step.

        Args:
            observation: What the last step showed.

        Returns:
            The decision for step `observation.step`.
        """

    def learning_rate_factor(self, batch_size: int, initial: int) -> float:
        """Gives what the learning rate is multiplied by, by the schedule's `learning_rate` rule.

        Args:
            batch_size: Size of the next step.
            initial: Size for which the learning rate was chosen.

        Returns:
            The factor.
        """
        ratio = batch_size / initial
        return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.learning_rate]

    def state_dict(self) -> dict[str, Any]:
        """Gives everything that `update` remembers, as plain data that JSON can hold.

        Returns:
            The state: at least the size that the run began with, which on other ranks may be another by default.
        """
        return {"initial": self._initial}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state, after `start`.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If the state is of a schedule that remembers other things.
        """
        own = sorted(self.state_dict())
        if sorted(state) != own:
            raise ValueError(f"{self.name} remembers {own}, but the saved schedule state has {sorted(state)}.")
        self._initial = state["initial"]
