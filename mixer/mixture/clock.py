"""The run's budget and its clock: progress, epochs, and the size of the next step."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from mixer.utils.validation import MAX_SAMPLES_PER_STEP, MOST_COUNT, finite_number, whole_number


@dataclass(frozen=True)
class Budget:
    """How much a run trains in all: whichever of these ends first.

    Args:
        epochs: Passes over the mixture's epoch.
        samples: Samples of all streams together.
        tokens: Tokens of all streams together; the step that reaches them is the last.
        steps: Optimizer steps.

    Raises:
        ValueError: If nothing is given, or a number is not above 0.
        TypeError: If samples, tokens or steps are no whole numbers.

    Example:
        >>> Budget(tokens=2_000_000_000, epochs=3)
        Budget(epochs=3, samples=None, tokens=2000000000, steps=None)
    """

    epochs: float | None = None
    samples: int | None = None
    tokens: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            raise ValueError("budget must be given in epochs, samples, tokens or steps, got none of them.")
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"budget: {name} must be a number, got {value!r}.")
            if name != "epochs" and not isinstance(value, Integral):
                raise TypeError(f"budget: {name} must be a whole number, got {value!r}.")
            if not 0 < float(value) < math.inf:
                raise ValueError(f"budget: {name} must be above 0 and finite, got {value}.")

    @property
    def is_in_steps(self) -> bool:
        """Whether it can be counted in steps of a constant batch size, as the Trainer counts."""
        return self.samples is None and self.tokens is None


_COUNTS = ("step", "step_in_epoch", "num_epochs_done", "num_samples", "num_tokens", "samples_in_epoch")


class Clock:
    """Counts a run: in steps while the batch size is constant, in data as soon as it is not.

    With a constant batch size and a budget in epochs or steps the clock is the Trainer's own count of steps, and all
    that it says is what the Trainer would say. Else progress is what is done of the budget (epochs, samples, tokens,
    steps: the one that is furthest), and an epoch is done by its samples. Both agree at each epoch's end where the
    last batch is kept.

    Args:
        batch_size: Samples of the first step, over all ranks.
        epoch_size: Samples of an epoch of the mixture.
        budget: How much the run trains in all.
        drop_unit: Where the rest of an epoch is dropped, it is cut to a multiple of so many samples; 0 keeps the
            rest as a smaller step. Once the batch size changes, any rest smaller than a batch is dropped; an epoch
            smaller than a batch is one batch.
        max_samples: Samples after which all streams are exhausted, or `None`.
        pass_size: Samples of one accumulation step over all ranks, in which the Trainer counts an epoch; `None` takes
            the batch size.
        num_warmup_steps: Steps of the learning rate's warm-up, if it is given in steps.
        tokens_per_sample: A guess, until tokens were counted.
        is_constant: Whether the batch size is that of the first step until further notice.

    Raises:
        ValueError: If a number is below its least value, or dropping the rest leaves nothing of an epoch.
    """

    def __init__(
        self,
        batch_size: int,
        epoch_size: int,
        budget: Budget,
        drop_unit: int = 0,
        max_samples: int | None = None,
        pass_size: int | None = None,
        num_warmup_steps: int = 0,
        tokens_per_sample: float = 1.0,
        is_constant: bool = True,
    ):
        if epoch_size < 1:
            raise ValueError(f"epoch_size must be at least 1 sample, got {epoch_size}.")
        self.budget, self.batch_size, self._initial = budget, batch_size, batch_size
        self._drops = drop_unit > 0
        self._counts_steps = is_constant and budget.is_in_steps
        self.epoch_size = epoch_size - (epoch_size % drop_unit if drop_unit and self._counts_steps else 0)
        if self.epoch_size < 1 or (self._drops and epoch_size < batch_size and not self._counts_steps):
            raise ValueError(
                f"dataloader_drop_last drops everything: an epoch has {epoch_size} samples, fewer than the "
                f"{max(drop_unit, batch_size)} of a batch over all ranks. Lower the batch size or keep the last batch."
            )
        self._pass_size = batch_size if pass_size is None else pass_size
        self.dropped_samples = epoch_size - self.epoch_size
        self._whole_epoch, self._laid_out = epoch_size, self.epoch_size
        self._max_samples, self._num_warmup_steps = max_samples, num_warmup_steps
        self._guessed_tokens = tokens_per_sample
        self.step = self.step_in_epoch = self.num_epochs_done = 0
        self.num_samples = self.num_tokens = self.samples_in_epoch = 0
        self._warmup_share = self._least_progress = self._last_coverage = 0.0
        self._planned_steps = self._plan_steps()
        # Of the first size: the present one does not say how many epochs those steps are.
        by_steps = -(-self._planned_steps // self.steps_per_epoch)
        self.planned_epochs = by_steps if budget.epochs is None else math.ceil(budget.epochs)

    # ---- How far the run is ----

    @property
    def counts_steps(self) -> bool:
        """Whether the clock is the Trainer's own count of steps."""
        return self._counts_steps

    @property
    def progress(self) -> float:
        """Share of the run's budget that is done, in [0, 1]."""
        if self._counts_steps:
            return min(1.0, self.step / self._planned_steps)
        return min(1.0, max(self._least_progress, *(done / budget for done, budget in self._budgets())))

    @property
    def epoch(self) -> float:
        """Number of epochs done; while the clock counts steps, as the Trainer counts them."""
        return self.num_epochs_done + self._epoch_share()

    @property
    def epoch_coverage(self) -> float:
        """Share of the present epoch's samples that was seen, in (0, 1] once the run has begun.

        At an epoch's end it is that of this epoch: less than 1 where its rest was dropped.
        """
        return self._last_coverage if self.at_epoch_end else self.samples_in_epoch / self.whole_epoch

    @property
    def whole_epoch(self) -> int:
        """Samples of an epoch, with those that are dropped."""
        return self._whole_epoch

    @property
    def at_epoch_end(self) -> bool:
        """Whether the last step ended an epoch."""
        return self.step > 0 and self.step_in_epoch == 0

    @property
    def schedule_position(self) -> float:
        """The step at which the learning rate's schedule stands, out of `planned_steps`.

        A warm-up that is given in steps lasts so many steps, however large they are; the rest goes by progress.
        """
        if self._counts_steps or self.step <= self._num_warmup_steps:
            return float(self.step)
        if self._warmup_share >= 1.0:
            return float(self._planned_steps)
        share = (self.progress - self._warmup_share) / (1.0 - self._warmup_share)
        position = self._num_warmup_steps + share * max(0, self._planned_steps - self._num_warmup_steps)
        return round(position, 9)  # a step is a whole number again where the budget is in steps

    # ---- How much there is to come ----

    @property
    def planned_steps(self) -> int:
        """Steps of the whole run if the batch size stayed what it is at the start; a warm-up in steps comes first."""
        return self._planned_steps

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch of the present batch size."""
        return max(1, self._steps_of(self.epoch_size))

    @property
    def steps_left_in_epoch(self) -> int:
        """Steps that the present epoch still has, if the batch size stays."""
        return self._steps_of(self._left_in_epoch())

    @property
    def max_steps(self) -> int:
        """Steps of the whole run: exact while the clock counts steps, else as it is if the batch size stays."""
        if self._counts_steps:
            return self._planned_steps
        return self.step if self.progress >= 1.0 else self.step + max(1, math.ceil(min(self._steps_left())))

    def next_total(self) -> int:
        """Gives the size of the next step.

        Returns:
            Number of samples: the batch size, or what is left of the epoch or of the budget.
        """
        total = min(self.batch_size, self._left_in_epoch())
        if self._counts_steps:
            return total
        if self.budget.epochs is not None:
            total = min(total, math.ceil((self.budget.epochs - self.epoch) * self.epoch_size - 1e-6))
        if self.budget.samples is not None:
            total = min(total, self.budget.samples - self.num_samples)
        return max(total, 1)

    # ---- What moves it ----

    def resize(self, batch_size: int) -> None:
        """Sets the size of the steps to come; a clock that counted steps counts data from then on.

        Args:
            batch_size: Number of samples.
        """
        if batch_size == self.batch_size:
            return
        if self._counts_steps:
            self._least_progress, self._counts_steps = self.progress, False
            self.epoch_size = self._whole_epoch  # what was left out of it in advance is now dropped at its end
        self.batch_size = batch_size

    def tick(self, num_samples: int | None = None, num_tokens: int = 0) -> None:
        """Counts a step.

        Args:
            num_samples: Its samples; `None` takes those of `next_total`.
            num_tokens: Its tokens.
        """
        num_samples = self.next_total() if num_samples is None else num_samples
        self.step += 1
        self.step_in_epoch += 1
        self.num_samples += num_samples
        self.samples_in_epoch += num_samples
        self.num_tokens += num_tokens
        if self._counts_steps:
            is_end = self.step_in_epoch == self.steps_per_epoch
        else:
            is_end = self.samples_in_epoch >= self.epoch_size
        if is_end:
            self.end_epoch()
        if self.step == self._num_warmup_steps:
            self._warmup_share = self.progress

    def drop_rest(self) -> int:
        """Ends the epoch if what is left of it makes no whole batch and is to be dropped.

        While the clock counts steps that rest is no part of an epoch to begin with.

        Returns:
            Number of samples dropped now.
        """
        rest = self.epoch_size - self.samples_in_epoch
        if self._counts_steps or not self._drops or not self.step_in_epoch or rest >= self.batch_size:
            return 0
        self.dropped_samples = max(self.dropped_samples, rest)
        self.end_epoch()
        return rest

    def anew(self) -> "Clock":
        """Gives a copy that has counted nothing yet."""
        clock = copy.copy(self)
        for name in _COUNTS:
            setattr(clock, name, 0)
        return clock

    def end_epoch(self) -> None:
        """Ends the present epoch, be it complete or not."""
        self._last_coverage = self.samples_in_epoch / self._whole_epoch
        self.num_epochs_done += 1
        self.step_in_epoch = self.samples_in_epoch = 0

    # ---- State ----

    def state_dict(self) -> dict[str, Any]:
        """Gives the state as plain data."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "batch_size": self.batch_size,
            "initial_batch_size": self._initial,
            "epoch_size": self._laid_out,
            "counts_steps": self._counts_steps,
            "dropped_samples": self.dropped_samples,
            "warmup_share": self._warmup_share,
            "least_progress": self._least_progress,
            "last_coverage": self._last_coverage,
        }

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Takes up a saved state.

        Args:
            state: What `state_dict` gave.
            allow_inexact: Goes on at the same step where epochs are other ones now.

        Raises:
            ValueError: If the saved run began with another batch size, had other epochs or is beyond its epoch's end.
        """
        own = self.state_dict()
        is_same = True
        for field, name in (("initial_batch_size", "batch_size"), ("epoch_size", "epoch_size")):
            if state[field] != own[field]:
                if not allow_inexact:
                    raise ValueError(f"{name} was {state[field]} when the run was saved and is {own[field]} now")
                is_same = False
        for name in _COUNTS:
            setattr(self, name, whole_number(state[name], name, most=MOST_COUNT))
        self._warmup_share = finite_number(state["warmup_share"], "warmup_share", 0.0)
        self._least_progress = finite_number(state["least_progress"], "least_progress", 0.0)
        self._last_coverage = finite_number(state.get("last_coverage", 1.0), "last_coverage", 0.0)  # older ones: whole
        if is_same:
            self._counts_steps = self._counts_steps and bool(state["counts_steps"])
            self.batch_size = whole_number(state["batch_size"], "batch_size", 1, MAX_SAMPLES_PER_STEP)
            self.dropped_samples = whole_number(state["dropped_samples"], "dropped_samples", most=self.epoch_size)
            self.epoch_size = self._laid_out if self._counts_steps else self._whole_epoch
        else:
            self.num_epochs_done, self.step_in_epoch = divmod(self.step, self.steps_per_epoch)
            self.samples_in_epoch = self.step_in_epoch * self.batch_size
        by_steps, by_samples = self.step_in_epoch > self.steps_per_epoch, self.samples_in_epoch > self.epoch_size
        if by_steps if self._counts_steps else by_samples:
            raise ValueError(
                f"step {self.step_in_epoch} and sample {self.samples_in_epoch} of an epoch were saved, which has "
                f"{self.steps_per_epoch} steps and {self.epoch_size} samples"
            )

    # ---- Sums ----

    def _left_in_epoch(self) -> int:
        done = self.step_in_epoch * self.batch_size if self._counts_steps else self.samples_in_epoch
        return self.epoch_size - done

    def _epoch_share(self) -> float:
        if not self._counts_steps:
            return self.samples_in_epoch / self.epoch_size
        num_samples = min(self.step_in_epoch * self.batch_size, self.epoch_size)
        return -(-num_samples // self._pass_size) / -(-self.epoch_size // self._pass_size)

    def _budgets(self) -> list[tuple[float, float]]:
        """Pairs what is done with the budget it is part of."""
        budget = self.budget
        done = (self.epoch, self.num_samples, self.num_tokens, self.step, self.num_samples)
        whole = (budget.epochs, budget.samples, budget.tokens, budget.steps, self._max_samples)
        return [(part, budget) for part, budget in zip(done, whole, strict=True) if budget is not None]

    def _steps_of(self, num_samples: int) -> int:
        whole, rest = divmod(num_samples, self.batch_size)
        return whole + (rest > 0 and (self._counts_steps or not self._drops))

    def _steps_left(self) -> list[float]:
        budget = self.budget
        left: list[float] = [] if budget.epochs is None else [(budget.epochs - self.epoch) * self.epoch_size]
        left += [limit - self.num_samples for limit in (budget.samples, self._max_samples) if limit is not None]
        if budget.tokens is not None:
            per_sample = self.num_tokens / self.num_samples if self.num_tokens else self._guessed_tokens
            left.append((budget.tokens - self.num_tokens) / per_sample)
        steps: list[float] = [self._steps_for(num_samples) for num_samples in left]
        return steps if budget.steps is None else [*steps, budget.steps - self.step]

    def _steps_for(self, num_samples: float) -> float:
        """Counts steps of the present size for so many samples; an epoch's last one may be smaller."""
        beyond = num_samples - self._left_in_epoch()
        if beyond <= 0:
            return math.ceil(num_samples / self.batch_size - 1e-9)
        epochs, rest = divmod(beyond, self.epoch_size)
        return self.steps_left_in_epoch + epochs * self.steps_per_epoch + math.ceil(rest / self.batch_size - 1e-9)

    def _plan_steps(self) -> int:
        if not self._counts_steps:
            steps = self.max_steps
            # Smaller batches to come may outlast a warm-up that is longer than this: the schedule has to have an end.
            has_end = steps > self._num_warmup_steps or self.budget.steps is not None
            return steps if has_end else steps + self._num_warmup_steps
        limits = []
        if self.budget.steps is not None:
            limits.append(self.budget.steps)
        if self.budget.epochs is not None:
            limits.append(math.ceil(self.budget.epochs * self.steps_per_epoch))
        if self._max_samples is not None:
            epochs, rest = divmod(self._max_samples, self.epoch_size + self.dropped_samples)
            limits.append(epochs * self.steps_per_epoch + self._steps_of(min(rest, self.epoch_size)))
        return min(limits)
