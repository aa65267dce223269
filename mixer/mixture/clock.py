"""Budget and clock of a run: progress, epochs, and the size of the next step."""

import copy
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from mixer.policies.contract import no_decay
from mixer.utils.recorded_arguments import names_arguments
from mixer.utils.validation import MAX_SAMPLES_PER_STEP, MOST_COUNT, finite_number, whole_number

_COUNTS = ("step", "step_in_epoch", "num_epochs_done", "num_samples", "num_tokens", "samples_in_epoch", "num_labels")


@names_arguments
@dataclass(frozen=True)
class Budget:
    """Length of a run: it ends at the first limit reached.

    Args:
        epochs: Epochs of the mixture.
        samples: Samples of all streams together.
        tokens: Tokens of all streams together; the step that reaches them is the last.
        steps: Optimizer steps.
        labels: Labels of all streams together, the tokens that the loss learns; likewise.

    Raises:
        ValueError: If no limit is set, or a number is not above 0.
        TypeError: If samples, tokens, steps or labels are not integers.

    Example:
        >>> Budget(tokens=2_000_000_000, epochs=3)
        Budget(epochs=3, samples=None, tokens=2000000000, steps=None, labels=None)
    """

    epochs: float | None = None
    samples: int | None = None
    tokens: int | None = None
    steps: int | None = None
    labels: int | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise ValueError("budget must be set in epochs, samples, tokens, labels or steps, got none of them.")
        for name, value in self.limits.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"budget: {name} must be a number, got {value!r}.")
            if name != "epochs" and not isinstance(value, Integral):
                raise TypeError(f"budget: {name} must be a whole number, got {value!r}.")
            if not 0 < float(value) < math.inf:
                raise ValueError(f"budget: {name} must be above 0 and finite, got {value}.")

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that are set, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def is_in_steps(self) -> bool:
        """Whether it can be counted in steps of a constant batch size, as the Trainer counts."""
        return self.samples is None and self.tokens is None and self.labels is None


class Clock:
    """Measures a run: in steps while the batch size is constant, in data once it varies.

    With a constant batch size and a budget in epochs or steps, the clock matches the Trainer's own step count.
    Otherwise, progress is the completed fraction of the budget (epochs, samples, tokens, steps: the furthest), and an
    epoch ends after its samples. Both agree at each epoch's end if the last batch is kept. Without an epoch size the
    whole run is one epoch, as in the Trainer on data of unknown length.

    Args:
        batch_size: Samples of the first step, over all ranks.
        epoch_size: Samples of an epoch of the mixture; `None` makes the run one epoch, which cuts no step.
        budget: Length of the run.
        drop_unit: With `drop_last`, an epoch is truncated to a multiple of this number of samples; 0 keeps the rest as
            a smaller step. Once the batch size varies, any rest smaller than a batch is dropped; an epoch smaller than
            a batch is one batch.
        max_samples: Samples after which all streams are exhausted, or `None`.
        pass_size: Samples of one accumulation step over all ranks, the Trainer's unit for epochs; `None` uses the batch
            size.
        num_warmup_steps: Warm-up steps of the learning rate, if set in steps.
        tokens_per_sample: Estimate of a sample's tokens and labels until they are counted.
        is_constant: Whether the batch size is constant until further notice.
        decay_step: Gives the step at which the learning rate begins to fall in a run of so many steps; `None` if no
            learning-rate schedule is known.

    Raises:
        ValueError: If a number is too small, or dropping the rest leaves nothing of an epoch.
    """

    def __init__(
        self,
        batch_size: int,
        epoch_size: int | None,
        budget: Budget,
        drop_unit: int = 0,
        max_samples: int | None = None,
        pass_size: int | None = None,
        num_warmup_steps: int = 0,
        tokens_per_sample: float = 1.0,
        is_constant: bool = True,
        decay_step: Callable[[int], int] | None = None,
    ):
        if epoch_size is not None and epoch_size < 1:
            raise ValueError(f"epoch_size must be at least 1 sample, got {epoch_size}.")
        self.budget, self.batch_size, self.initial = budget, batch_size, batch_size
        self._drops, self.spans_run = drop_unit > 0 and epoch_size is not None, epoch_size is None
        self.is_step_based = is_constant and budget.is_in_steps  # whether it is the Trainer's own count of steps
        whole: float = math.inf if epoch_size is None else epoch_size
        self.epoch_size = whole - (whole % drop_unit if self._drops and self.is_step_based else 0)
        if self.epoch_size < 1 or (self._drops and whole < batch_size and not self.is_step_based):
            raise ValueError(
                f"dataloader_drop_last drops everything: an epoch has {epoch_size} samples, fewer than the "
                f"{max(drop_unit, batch_size)} of a batch over all ranks. Reduce the batch size or keep the last batch."
            )
        self._pass_size = batch_size if pass_size is None else pass_size
        self.dropped_samples = 0 if self.spans_run else int(whole - self.epoch_size)
        self.whole_epoch, self._laid_out = whole, self.epoch_size  # with and without dropped samples
        self._max_samples, self._num_warmup_steps = max_samples, num_warmup_steps
        self._guessed_tokens = tokens_per_sample
        self._decay_step = None if decay_step is None else functools.cache(decay_step)
        self.step = self.step_in_epoch = self.num_epochs_done = 0
        self.num_samples = self.num_tokens = self.num_labels = self.samples_in_epoch = 0
        self._warmup_share = self._least_progress = self._last_coverage = 0.0
        self.planned_steps = self._plan_steps()  # of the whole run at the initial batch size, including a warm-up
        by_steps = -(-self.planned_steps // self.steps_per_epoch)
        self.planned_epochs = by_steps if budget.epochs is None else math.ceil(budget.epochs)

    # ---- Progress ----

    @property
    def progress(self) -> float:
        """Completed fraction of the run's budget, in [0, 1]."""
        if self.is_step_based:
            return min(1.0, self.step / self.planned_steps)
        return min(1.0, max(self._least_progress, *(done / budget for done, budget in self._budgets())))

    @property
    def done(self) -> dict[str, float]:
        """What the run has had so far, by the names of a budget's limits."""
        return {**self._counts, "epochs": self.epoch}

    @property
    def _counts(self) -> dict[str, int]:
        counts = {"samples": self.num_samples, "tokens": self.num_tokens, "labels": self.num_labels}
        return {**counts, "steps": self.step}

    def decay_begins(self) -> float:
        """Returns the progress at which the learning rate begins to fall.

        Raises:
            ValueError: If there is no such moment, or no learning-rate schedule is known.
        """
        return no_decay() if self._decay_step is None else self._decay_step(self.planned_steps) / self.planned_steps

    @property
    def epoch(self) -> float:
        """Completed epochs; while the clock counts steps, as the Trainer counts them."""
        if self.spans_run:
            return self.num_epochs_done + self.progress * (self.step_in_epoch / max(1, self.step))
        if not self.is_step_based:
            return self.num_epochs_done + self.samples_in_epoch / self.epoch_size
        num_samples = min(self.step_in_epoch * self.batch_size, self.epoch_size)
        return self.num_epochs_done + -(-num_samples // self._pass_size) / -(-self.epoch_size // self._pass_size)

    @property
    def epoch_coverage(self) -> float:
        """Fraction of the current epoch's samples seen, in (0, 1] once the run has begun.

        At an epoch's end it refers to that epoch: less than 1 if its rest was dropped.
        """
        if self.spans_run:
            return self.progress
        return self._last_coverage if self.at_epoch_end else self.samples_in_epoch / self.whole_epoch

    @property
    def at_epoch_end(self) -> bool:
        """Whether the last step ended an epoch."""
        return self.step > 0 and self.step_in_epoch == 0

    @property
    def schedule_position(self) -> float:
        """Position of the learning-rate schedule, in steps out of `planned_steps`.

        A warm-up in steps lasts that many steps, whatever their size; the rest follows progress.
        """
        if self.is_step_based or self.step <= self._num_warmup_steps:
            return float(self.step)
        if self._warmup_share >= 1.0:
            return float(self.planned_steps)
        share = (self.progress - self._warmup_share) / (1.0 - self._warmup_share)
        position = self._num_warmup_steps + share * max(0, self.planned_steps - self._num_warmup_steps)
        return round(position, 9)  # whole steps stay whole with a budget in steps

    # ---- Forecast ----

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch at the current batch size."""
        return self.max_steps if self.spans_run else max(1, self._steps_of(self.epoch_size))

    @property
    def steps_left_in_epoch(self) -> int:
        """Steps left in the current epoch at the current batch size."""
        return self.max_steps - self.step if self.spans_run else self._steps_of(self._left_in_epoch())

    @property
    def max_steps(self) -> int:
        """Steps of the whole run: exact while the clock counts steps, else assuming the current batch size."""
        if self.is_step_based:
            return self.planned_steps
        return self.step if self.progress >= 1.0 else self.step + max(1, math.ceil(min(self._steps_left())))

    def next_total(self) -> int:
        """Returns the samples of the next step: the batch size, limited by the rest of the epoch and of the budget."""
        total = int(min(self.batch_size, self._left_in_epoch()))
        if self.is_step_based:
            return total
        if self.budget.epochs is not None:
            total = min(total, math.ceil((self.budget.epochs - self.epoch) * self.epoch_size - 1e-6))
        if self.budget.samples is not None:
            total = min(total, self.budget.samples - self.num_samples)
        return max(total, 1)

    # ---- Counting ----

    def resize(self, batch_size: int) -> None:
        """Sets the batch size; a clock that counted steps counts data from then on."""
        if batch_size == self.batch_size:
            return
        if self.is_step_based:
            self._least_progress, self.is_step_based = self.progress, False
            self.epoch_size = self.whole_epoch  # its rest is now dropped at the end, not in advance
        self.batch_size = batch_size

    def tick(self, num_samples: int | None = None, num_tokens: int = 0, num_labels: int = 0) -> None:
        """Counts a step.

        Args:
            num_samples: Samples of the step; `None` uses `next_total`.
            num_tokens: Tokens of the step.
            num_labels: Labels of the step.
        """
        num_samples = self.next_total() if num_samples is None else num_samples
        self.step += 1
        self.step_in_epoch += 1
        self.num_samples += num_samples
        self.samples_in_epoch += num_samples
        self.num_tokens += num_tokens
        self.num_labels += num_labels
        if self._has_ended_epoch():
            self.end_epoch()
        if self.step == self._num_warmup_steps:
            self._warmup_share = self.progress

    def _has_ended_epoch(self) -> bool:
        if self.spans_run:
            return self.progress >= 1.0
        by_steps, by_samples = self.step_in_epoch == self.steps_per_epoch, self.samples_in_epoch >= self.epoch_size
        return by_steps if self.is_step_based else by_samples

    def drop_rest(self) -> int:
        """Ends the epoch if its rest is smaller than a batch and `drop_last` is set; returns the samples dropped now.

        While the clock counts steps, the epoch excludes that rest from the start.
        """
        rest = self.epoch_size - self.samples_in_epoch
        if self.is_step_based or not self._drops or not self.step_in_epoch or rest >= self.batch_size:
            return 0
        self.dropped_samples = max(self.dropped_samples, int(rest))
        self.end_epoch()
        return int(rest)

    def zeroed_copy(self) -> "Clock":
        """Returns a copy with all counts at 0."""
        clock = copy.copy(self)
        for name in _COUNTS:
            setattr(clock, name, 0)
        return clock

    def end_epoch(self) -> None:
        """Ends the current epoch, complete or not."""
        self._last_coverage = self.samples_in_epoch / self.whole_epoch
        self.num_epochs_done += 1
        self.step_in_epoch = self.samples_in_epoch = 0

    # ---- State ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "batch_size": self.batch_size,
            "initial_batch_size": self.initial,
            "epoch_size": None if self.spans_run else int(self._laid_out),
            "counts_steps": self.is_step_based,
            "dropped_samples": self.dropped_samples,
            "warmup_share": self._warmup_share,
            "least_progress": self._least_progress,
            "last_coverage": self._last_coverage,
        }

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Restores a saved state.

        Args:
            state: Result of `state_dict`.
            allow_inexact: Whether to resume at the same step if epochs have changed.

        Raises:
            ValueError: If initial batch size or epoch size differ, or the position is beyond the epoch's end.
        """
        own = self.state_dict()
        changed = [field for field in ("initial_batch_size", "epoch_size") if state[field] != own[field]]
        if changed and not allow_inexact:
            field = changed[0]
            name, whole = field.removeprefix("initial_"), "the whole run"
            raise ValueError(
                f"{name} was {state[field] or whole} when the run was saved and is {own[field] or whole} now"
            )
        for name in _COUNTS:
            setattr(self, name, whole_number(state[name], name, most=MOST_COUNT))
        self._warmup_share, self._least_progress, self._last_coverage = (
            finite_number(state[name], name, 0.0) for name in ("warmup_share", "least_progress", "last_coverage")
        )
        if not changed:
            self.is_step_based = self.is_step_based and bool(state["counts_steps"])
            self.batch_size = whole_number(state["batch_size"], "batch_size", 1, MAX_SAMPLES_PER_STEP)
            most = MOST_COUNT if self.spans_run else int(self.epoch_size)
            self.dropped_samples = whole_number(state["dropped_samples"], "dropped_samples", most=most)
            self.epoch_size = self._laid_out if self.is_step_based else self.whole_epoch
        else:
            self.num_epochs_done, self.step_in_epoch = divmod(self.step, self.steps_per_epoch)
            self.samples_in_epoch = self.step_in_epoch * self.batch_size
        if self.spans_run:
            self._reopen()
        else:
            self._check_position()

    def _check_position(self) -> None:
        """Refuses a saved position beyond the epoch's end."""
        by_steps, by_samples = self.step_in_epoch > self.steps_per_epoch, self.samples_in_epoch > self.epoch_size
        if by_steps if self.is_step_based else by_samples:
            raise ValueError(
                f"the saved position is step {self.step_in_epoch} and sample {self.samples_in_epoch} of an epoch, but "
                f"an epoch has {self.steps_per_epoch} steps and {self.epoch_size} samples"
            )

    def _reopen(self) -> None:
        """Continues the only epoch of a finished run that has been made longer."""
        if self.num_epochs_done and not self.step_in_epoch and self.progress < 1.0:
            self.num_epochs_done -= 1
            self.step_in_epoch, self.samples_in_epoch = self.step, self.num_samples

    # ---- Arithmetic ----

    def _left_in_epoch(self) -> float:
        done = self.step_in_epoch * self.batch_size if self.is_step_based else self.samples_in_epoch
        return self.epoch_size - done

    def _budgets(self) -> list[tuple[float, float]]:
        """Returns pairs of completed and total amounts."""
        counts, limits = self._counts, self.budget.limits
        # Without an epoch size `epoch` goes by the progress; no budget is in epochs then.
        pairs = [(self.epoch if name == "epochs" else counts[name], limit) for name, limit in limits.items()]
        return pairs if self._max_samples is None else [*pairs, (self.num_samples, self._max_samples)]

    def _steps_of(self, num_samples: float) -> int:
        whole, rest = divmod(int(num_samples), self.batch_size)
        return whole + (rest > 0 and (self.is_step_based or not self._drops))

    def _steps_left(self) -> list[float]:
        budget = self.budget
        left: list[float] = [] if budget.epochs is None else [(budget.epochs - self.epoch) * self.epoch_size]
        left += [limit - self.num_samples for limit in (budget.samples, self._max_samples) if limit is not None]
        for limit, done in ((budget.tokens, self.num_tokens), (budget.labels, self.num_labels)):
            if limit is not None:
                per_sample = done / self.num_samples if done else self._guessed_tokens
                left.append((limit - done) / per_sample)
        steps: list[float] = [self._steps_for(num_samples) for num_samples in left]
        return steps if budget.steps is None else [*steps, budget.steps - self.step]

    def _steps_for(self, num_samples: float) -> float:
        """Counts the steps at the current batch size for a number of samples; an epoch's last one may be smaller."""
        beyond = num_samples - self._left_in_epoch()
        if beyond <= 0:
            return math.ceil(num_samples / self.batch_size - 1e-9)
        epochs, rest = divmod(beyond, self.epoch_size)
        return self.steps_left_in_epoch + epochs * self.steps_per_epoch + math.ceil(rest / self.batch_size - 1e-9)

    def _plan_steps(self) -> int:
        if not self.is_step_based:
            steps = self.max_steps
            # Later, smaller batches may outlast a warm-up longer than this: the schedule must still have an end.
            has_end = steps > self._num_warmup_steps or self.budget.steps is not None
            return steps if has_end else steps + self._num_warmup_steps
        budget = self.budget
        limits = [] if budget.steps is None else [budget.steps]
        if budget.epochs is not None:
            limits.append(math.ceil(budget.epochs * self.steps_per_epoch))
        if self._max_samples is not None:
            epochs, rest = divmod(self._max_samples, self.epoch_size + self.dropped_samples)
            whole = int(epochs) * self.steps_per_epoch if epochs else 0
            limits.append(whole + self._steps_of(min(rest, self.epoch_size)))
        return min(limits)
