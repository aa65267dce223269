"""The second control of a run: the batch size, and its effect on the learning rate."""

import math
from collections.abc import Mapping
from typing import Any

from mixer.schedules.base import BatchDecision, BatchObservation, Schedule
from mixer.schedules.limits import check_whole
from mixer.utils.errors import InvalidValueError, require, wrong_type, wrong_value
from mixer.utils.ranges import is_number
from mixer.utils.saved_state import check_form, is_known
from mixer.utils.text import naming_rule
from mixer.utils.validation import MAX_SAMPLES_PER_STEP, finite_number, whole_number


class BatchSize:
    """The batch size: the schedule's decision, brought within its bounds, or the size set by hand.

    Args:
        schedule: The schedule.
        default: Size of the first steps, if the schedule names none.
        world_size: Number of ranks; a step has at least a sample for each.

    Attributes:
        scheduled: The schedule's last decision, within its bounds.

    Raises:
        ValueError: If the size to begin with is below the number of ranks or outside the schedule's bounds.
    """

    def __init__(self, schedule: Schedule, default: int, world_size: int = 1):
        self.schedule = schedule
        self.initial = default if schedule.initial is None else schedule.initial
        self._world_size = world_size
        self._limits = schedule.limits if schedule.is_exact else schedule.limits.with_least(world_size)
        try:
            self._limits.check_initial(self.initial)
        except ValueError as error:
            source = "the schedule" if schedule.initial is not None else "the training arguments"
            raise wrong_value("batch_size", f"={schedule.name}: the first size comes from {source}. {error}") from None
        self._check_ranks(self.initial, "batch_size")
        self.manual: int | None = None
        self.start()

    def start(self) -> None:
        """Begins a new run; a size set by hand stays."""
        self._take(self.schedule.start(self.initial), step=0, previous=self.initial)
        self.schedule.check_remembered()

    @property
    def value(self) -> int:
        """Samples of the next step over all ranks."""
        return self.scheduled if self.manual is None else self.manual

    @property
    def is_constant(self) -> bool:
        """Whether the size is `initial` until it is set by hand."""
        return self.schedule.is_constant

    @property
    def learning_rate_factor(self) -> float:
        """Factor on the run's learning rate in the next step."""
        if self.manual is None and self._own_factor is not None:
            return self._own_factor
        return self.schedule.learning_rate_factor(self.value, self.initial)

    def set(self, batch_size: int | None) -> None:
        """Sets the size by hand from the next step on.

        Args:
            batch_size: Samples over all ranks; `None` returns control to the schedule.

        Raises:
            ValueError: If there are fewer samples than ranks.
            TypeError: If it is no whole number.
        """
        if batch_size is not None:
            check_whole("set_batch_size", batch_size)
            self._check_ranks(batch_size, "set_batch_size")
        self.manual = None if batch_size is None else int(batch_size)

    def update(self, observation: BatchObservation) -> None:
        """Lets the schedule decide for the next step.

        Args:
            observation: The observation of the last step.

        Raises:
            ValueError: If the decision is no size; the message names the step.
        """
        with naming_rule(f"batch-size schedule {self.schedule.name}", observation.step):
            decision = self.schedule.update(observation)
        self._take(decision, observation.step, previous=observation.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Gives the state as plain data."""
        return {
            "name": self.schedule.name,
            "state": self.schedule.state_dict(),
            "scheduled": self.scheduled,
            "manual": self.manual,
            "own_factor": self._own_factor,
        }

    def load_state_dict(self, state: Mapping[str, Any], allow_inexact: bool = False) -> None:
        """Restores a saved state.

        Args:
            state: A state from `state_dict`.
            allow_inexact: Starts a schedule anew if it is another one, or does not fit the saved state.

        Raises:
            ValueError: If it is of another schedule.
        """
        if state["name"] != self.schedule.name:
            if allow_inexact:
                return
            raise wrong_value(
                "batch_size", f"was {state['name']} when the run was saved and is {self.schedule.name} now"
            )
        if is_known(self.schedule):
            saved, own = state["state"], self.schedule.state_dict()
            if allow_inexact and isinstance(saved, Mapping) and saved.keys() != own.keys():
                return  # a schedule of the user's that remembers other things now
            check_form(saved, own, self.schedule.name)
        self.schedule.load_state_dict(state["state"])
        least = 1 if self.schedule.is_exact else self._world_size
        manual, factor, most = state["manual"], state["own_factor"], MAX_SAMPLES_PER_STEP
        self.scheduled = max(whole_number(state["scheduled"], "the batch size", 1, most), least)
        self.manual = None if manual is None else whole_number(manual, "the batch size set by hand", 1, most)
        self._check_ranks(self.value, "the batch size that was saved")
        self._own_factor = None if factor is None else finite_number(factor, "the learning rate's factor", 0.0)

    def _take(self, decision: BatchDecision, step: int, previous: int) -> None:
        where = f"{self.schedule.name} at step {step}"
        if not isinstance(decision, BatchDecision) or not is_number(decision.batch_size):
            text = f"{where} must decide by a BatchDecision of a number of samples, got {decision!r}."
            raise wrong_type("batch_size", text)
        asked, factor = decision.batch_size, decision.learning_rate_factor
        if self.schedule.is_exact and asked > MAX_SAMPLES_PER_STEP and self._limits.maximum is None:
            # No list of samples is longer; a function of the user's that asks for more has gone astray.
            text = f"{where} asks for {asked:.3g} samples; a step has at most {MAX_SAMPLES_PER_STEP}."
            raise wrong_value("batch_size", text)
        require(0 < asked < math.inf, "batch_size", "finite and above 0", asked, f"{where} decided it.")
        if factor is not None and not 0 <= factor < math.inf:
            text = f"{where} multiplies the learning rate by {factor}; it must be finite and 0 or more."
            raise wrong_value("batch_size", text)
        scheduled = int(self._limits.apply(asked, previous))
        self._check_ranks(scheduled, where)
        self.scheduled, self._own_factor = scheduled, factor

    def _check_ranks(self, batch_size: int, where: str) -> None:
        if batch_size < self._world_size:
            text = f"{where}: {batch_size} samples in all are fewer than the {self._world_size} ranks; each needs one."
            raise InvalidValueError(text, option="batch_size")
