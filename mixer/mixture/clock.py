"""Budget and clock of a run: progress, epochs, and the size of the next step."""

import copy
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from mixer.mixture.apportion import as_fraction
from mixer.policies.contract import no_decay
from mixer.utils.errors import require, wrong_type, wrong_value
from mixer.utils.recorded_arguments import names_arguments
from mixer.utils.validation import MAX_SAMPLES_PER_STEP, MOST_COUNT, finite_number, whole_number

_COUNTS = ("step", "step_in_epoch", "num_epochs_done", "num_samples", "num_tokens", "samples_in_epoch", "num_labels")
_NO_END = 10**100  # samples of an epoch of unknown length: more than any run has
_BEFORE_END = math.nextafter(1.0, 0.0)


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
            raise wrong_value("budget", "must be set in epochs, samples, tokens, labels or steps, got none of them.")
        for name, value in self.limits.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise wrong_type(f"budget.{name}", f"must be a number, got {value!r}.", found=value)
            if name != "epochs" and not isinstance(value, Integral):
                raise wrong_type(f"budget.{name}", f"must be a whole number, got {value!r}.", found=value)
            require(0 < float(value) < math.inf, f"budget.{name}", "above 0 and finite", value)

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
    epoch ends after its samples. Both agree at each epoch's end if the last batch is kept. All amounts are compared as
    integers. Without an epoch size, each pass over a single stream is an epoch, and with several streams the whole run;
    `epoch` then counts as in the Trainer on data of unknown length: an epoch is as long as the run.

    Args:
        batch_size: Samples of the first step, over all ranks.
        epoch_size: Samples of an epoch of the mixture; `None` if it is unknown: `end_epoch` alone ends one then.
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
        has_passes: Whether a single stream of unknown length ends the epochs.

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
        has_passes: bool = False,
    ):
        require(epoch_size is None or epoch_size >= 1, "epoch_size", "at least 1 sample", epoch_size)
        self.budget, self.batch_size, self.initial = budget, batch_size, batch_size
        self._drops, self.has_length = drop_unit > 0 and epoch_size is not None, epoch_size is not None
        self.has_passes = has_passes
        self.is_step_based = is_constant and budget.is_in_steps  # whether it is the Trainer's own count of steps
        whole = _NO_END if epoch_size is None else epoch_size
        self.epoch_size = whole - (whole % drop_unit if self._drops and self.is_step_based else 0)
        if self.epoch_size < 1 or (self._drops and whole < batch_size and not self.is_step_based):
            raise wrong_value(
                "dataloader_drop_last",
                f"drops the {epoch_size} samples of an epoch, fewer than the {max(drop_unit, batch_size)} of a batch.",
            )
        self._pass_size = batch_size if pass_size is None else pass_size
        self.dropped_samples = whole - self.epoch_size
        self.whole_epoch, self._laid_out = whole, self.epoch_size  # with and without dropped samples
        self._max_samples, self._num_warmup_steps = max_samples, num_warmup_steps
        self._guessed_tokens = as_fraction(tokens_per_sample)
        self._epochs = None if budget.epochs is None else as_fraction(budget.epochs)
        self._decay_step = None if decay_step is None else functools.cache(decay_step)
        self.step = self.step_in_epoch = self.num_epochs_done = 0
        self.num_samples = self.num_tokens = self.num_labels = self.samples_in_epoch = 0
        self._warmup_share = self._least_progress = self._last_coverage = 0.0
        self.planned_steps = self._plan_steps()  # of the whole run at the initial batch size, including a warm-up
        by_steps = -(-self.planned_steps // self.steps_per_epoch) if self.has_length else sys.maxsize
        self.planned_epochs = by_steps if budget.epochs is None else math.ceil(budget.epochs)

    # ---- Progress ----

    @property
    def progress(self) -> float:
        """Completed fraction of the run's budget, in [0, 1]; 1 at its end and never before."""
        if self.is_step_based:
            is_over = self.step >= self.planned_steps
            return 1.0 if is_over else max(self._least_progress, min(self.step / self.planned_steps, _BEFORE_END))
        limits = [*self._budgets()]
        if any(done >= limit for _, done, limit in limits):
            return 1.0
        return max(self._least_progress, *(min(done / limit, _BEFORE_END) for _, done, limit in limits))

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
        if not self.has_length:
            return self.num_epochs_done - self.at_epoch_end + self._share_of_run
        if not self.is_step_based:
            return self.num_epochs_done + self.samples_in_epoch / self.epoch_size
        num_samples = min(self.step_in_epoch * self.batch_size, self.epoch_size)
        return self.num_epochs_done + -(-num_samples // self._pass_size) / -(-self.epoch_size // self._pass_size)

    @property
    def _share_of_run(self) -> float:
        """Share of the run that the current epoch has taken; at an epoch's end, that epoch."""
        if self.at_epoch_end:
            return self._last_coverage
        by_steps = self.step_in_epoch / self.planned_steps
        return by_steps if self.is_step_based else self.progress * (self.step_in_epoch / max(1, self.step))

    @property
    def epoch_coverage(self) -> float:
        """Fraction of the current epoch's samples seen, in (0, 1] once the run has begun.

        At an epoch's end it refers to that epoch: less than 1 if its rest was dropped.
        """
        if not self.has_length:
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
        return max(1, self._steps_of(self.epoch_size)) if self.has_length else self.max_steps

    @property
    def steps_left_in_epoch(self) -> int:
        """Steps left in the current epoch at the current batch size."""
        return self._steps_of(self._left_in_epoch()) if self.has_length else self.max_steps - self.step

    @property
    def max_steps(self) -> int:
        """Steps of the whole run: exact while the clock counts steps, else assuming the current batch size."""
        if self.is_step_based:
            return self.planned_steps
        return self.step if self.progress >= 1.0 else self.step + max(1, min(self._steps_left()))

    def next_total(self) -> int:
        """Returns the samples of the next step: the batch size, limited by the rest of the epoch and of the budget."""
        total = min(self.batch_size, self._left_in_epoch())
        if self.is_step_based:
            return total
        left = [limit - done for unit, done, limit in self._budgets() if unit in ("epochs", "samples")]
        return max(1, min([total, *left]))

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
        if self.has_length and self._left_in_epoch() <= 0:
            self.end_epoch()
        if self.step == self._num_warmup_steps:
            self._warmup_share = self.progress

    def drop_rest(self) -> int:
        """Ends the epoch if its rest is smaller than a batch and `drop_last` is set; returns the samples dropped now.

        While the clock counts steps, the epoch excludes that rest from the start.
        """
        if self.is_step_based or not self._drops or not self.step_in_epoch:
            return 0
        rest = self.epoch_size - self.samples_in_epoch
        if rest >= self.batch_size:
            return 0
        self.dropped_samples = max(self.dropped_samples, rest)
        self.end_epoch()
        return rest

    def zeroed_copy(self) -> "Clock":
        """Returns a copy with all counts at 0."""
        clock = copy.copy(self)
        for name in _COUNTS:
            setattr(clock, name, 0)
        clock._least_progress = 0.0  # noqa: SLF001  # its own
        return clock

    def end_epoch(self) -> None:
        """Ends the current epoch, complete or not."""
        by_samples = self.samples_in_epoch / self.whole_epoch
        self._last_coverage = by_samples if self.has_length else self._share_of_run
        self.num_epochs_done += 1
        self.step_in_epoch = self.samples_in_epoch = 0

    # ---- State ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "batch_size": self.batch_size,
            "initial_batch_size": self.initial,
            "epoch_size": self._laid_out if self.has_length else None,
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
            raise wrong_value(
                name, f"was {state[field] or whole} when the run was saved and is {own[field] or whole} now"
            )
        for name in _COUNTS:
            setattr(self, name, whole_number(state[name], name, most=MOST_COUNT))
        self._warmup_share, self._least_progress, self._last_coverage = (
            finite_number(state[name], name, 0.0) for name in ("warmup_share", "least_progress", "last_coverage")
        )
        if not changed:
            self.is_step_based = self.is_step_based and bool(state["counts_steps"])
            self.batch_size = whole_number(state["batch_size"], "batch_size", 1, MAX_SAMPLES_PER_STEP)
            most = min(MOST_COUNT, self.epoch_size)
            self.dropped_samples = whole_number(state["dropped_samples"], "dropped_samples", most=most)
            self.epoch_size = self._laid_out if self.is_step_based else self.whole_epoch
        else:
            self.num_epochs_done, self.step_in_epoch = divmod(self.step, self.steps_per_epoch)
            self.samples_in_epoch = self.step_in_epoch * self.batch_size
        # While steps are counted, the last one of an epoch is a whole batch, part of which may be beyond its end.
        if self.has_length and self._left_in_epoch() <= -(self.batch_size if self.is_step_based else 1):
            raise wrong_value(
                "step_in_epoch",
                f"is {self.step_in_epoch} of {self.steps_per_epoch}, row {self.samples_in_epoch} of {self.epoch_size}",
            )

    # ---- Arithmetic ----

    def _left_in_epoch(self) -> int:
        done = self.step_in_epoch * self.batch_size if self.is_step_based else self.samples_in_epoch
        return self.epoch_size - done

    def _budgets(self) -> Iterator[tuple[str, int, int]]:
        """Yields the unit of each limit, and the completed and total amounts; epochs count in samples."""
        for unit, done in self._counts.items():
            if (limit := getattr(self.budget, unit)) is not None:
                yield unit, done, limit
        if self._epochs is not None:
            whole = -(-self._epochs.numerator * self.epoch_size // self._epochs.denominator)
            yield "epochs", self.num_epochs_done * self.epoch_size + self.samples_in_epoch, whole
        if self._max_samples is not None:
            yield "samples of all streams", self.num_samples, self._max_samples

    def _steps_of(self, num_samples: int) -> int:
        whole, rest = divmod(num_samples, self.batch_size)
        return whole + (rest > 0 and (self.is_step_based or not self._drops))

    def _steps_left(self) -> Iterator[int]:
        for unit, done, limit in self._budgets():
            left = limit - done
            if unit in ("tokens", "labels"):
                per_sample = Fraction(done, self.num_samples) if done else self._guessed_tokens
                left = math.ceil(left / per_sample)
            yield left if unit == "steps" else self._steps_for(left)

    def _steps_for(self, num_samples: int) -> int:
        """Counts the steps at the current batch size for a number of samples; an epoch's last one may be smaller."""
        beyond = num_samples - self._left_in_epoch()
        if beyond <= 0:
            return -(-num_samples // self.batch_size)
        epochs, rest = divmod(beyond, self.epoch_size)
        return self.steps_left_in_epoch + epochs * self.steps_per_epoch + -(-rest // self.batch_size)

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
            whole = epochs * self.steps_per_epoch if epochs else 0
            limits.append(whole + self._steps_of(min(rest, self.epoch_size)))
        return min(limits)
