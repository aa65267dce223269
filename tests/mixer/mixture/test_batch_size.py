import json
import math
from typing import Any

import numpy as np
import pytest

from mixer.measurements import MeanLoss
from mixer.mixture.batch_size import BatchSize
from mixer.schedules import BatchDecision, BatchObservation, Constant, Function, LossChange, Schedule


class Asking(Schedule):
    """Asks for what it is told to."""

    def __init__(self, *decisions: Any, **bounds: int):
        super().__init__(**bounds)
        self.decisions = decisions

    def update(self, observation: BatchObservation) -> BatchDecision:
        decision: BatchDecision = self.decisions[observation.step - 1]
        return decision


class Exact(Asking):
    is_exact = True


def observation(step: int, batch_size: int, loss: float = math.nan) -> BatchObservation:
    return BatchObservation(step, 0.5, 0, step * 8, 0, batch_size, measured={MeanLoss: loss})


def asked(*decisions: Any) -> BatchSize:
    """The size after each of the decisions."""
    size = BatchSize(Asking(*decisions), 8)
    for step in range(1, len(decisions) + 1):
        size.update(observation(step, size.value))
    return size


def through_json(size: BatchSize) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(size.state_dict()))
    return state


def test_by_hand_rules_until_it_is_given_back() -> None:
    size = BatchSize(Function(lambda step, batch_size: 8 + step), 8)
    size.set(np.int64(100))  # type: ignore[arg-type]
    size.update(observation(1, 100))
    assert (size.value, through_json(size)["manual"]) == (100, 100)
    size.set(None)
    assert size.value == 9


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        *[(wrong, ValueError, f"must be at least 1 sample, got {wrong}") for wrong in (0, -3)],
        *[(wrong, TypeError, "must be a whole number of samples") for wrong in (2.0, True, "8", np.float64(2))],
    ],
)
def test_no_size_by_hand_is_refused(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"set_batch_size {message}"):
        BatchSize(Constant(), 8).set(wrong)


def test_the_first_size_has_to_be_within_the_bounds_and_each_rank_needs_a_sample() -> None:
    with pytest.raises(ValueError, match=r"first size comes from the training arguments\. initial=4 is not"):
        BatchSize(LossChange(minimum=5, maximum=64), 4)
    with pytest.raises(ValueError, match=r"first size comes from the schedule\. initial=2 is not"):
        BatchSize(LossChange(initial=2, maximum=64), 8, world_size=4)
    few = "3 samples in all are fewer than the 4 ranks"
    with pytest.raises(ValueError, match=f"^batch_size: {few}"):
        BatchSize(Constant(3), 8, world_size=4)
    size = BatchSize(Function(lambda step, batch_size: 8 - step), 8, world_size=4)
    with pytest.raises(ValueError, match=f"set_batch_size: {few}"):
        size.set(3)
    size.update(observation(4, 5))
    with pytest.raises(ValueError, match=f"Function at step 5: {few}"):
        size.update(observation(5, 4))


NUMBER, FACTOR = "asks for .* it must be finite and above 0", "multiplies the learning rate by"


@pytest.mark.parametrize(
    ("decision", "error", "message"),
    [
        *[(BatchDecision(number), ValueError, NUMBER) for number in (math.nan, math.inf, 0.0, -1.0)],
        *[(BatchDecision(8, factor), ValueError, FACTOR) for factor in (math.nan, math.inf, -0.1)],
        *[(wrong, TypeError, "a schedule decides") for wrong in (3, None, BatchDecision(True), BatchDecision("8"))],  # type: ignore[arg-type]
    ],
)
def test_what_a_schedule_must_not_ask_for(decision: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"batch_size: Asking at step 1:? {message}"):
        asked(decision)
    begins = type("Begins", (Asking,), {"start": lambda self, initial: decision})
    with pytest.raises(error, match=r"batch_size: Begins at step 0"):
        BatchSize(begins(), 8)


def test_a_step_has_no_more_samples_than_a_list_may() -> None:
    size = BatchSize(Exact(BatchDecision(2**31 - 1), BatchDecision(2**31)), 8)
    size.update(observation(1, 8))
    assert size.value == 2**31 - 1
    with pytest.raises(ValueError, match=r"Exact at step 2 asks for 2\.15e\+09 samples; a step has at most"):
        size.update(observation(2, 8))


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_follows_by_rule(rule: Any, factor: float) -> None:
    size = BatchSize(Constant(8, learning_rate=rule), 8)
    assert size.learning_rate_factor == 1.0
    size.set(32)
    assert size.learning_rate_factor == factor


def test_a_schedule_may_have_a_factor_of_its_own() -> None:
    size = asked(BatchDecision(16, 0.25))
    assert size.learning_rate_factor == 0.25
    size.set(8)
    assert size.learning_rate_factor == 1.0


def test_growth_is_bound_from_the_first_size_on() -> None:
    size = BatchSize(Asking(BatchDecision(100), max_growth=1.5), 8)
    assert size.value == 8
    size.update(observation(1, 8))
    assert size.value == 12


def test_a_size_by_hand_of_one_sample_and_a_small_factor_come_back() -> None:
    size, resumed = asked(BatchDecision(8, 0.0)), BatchSize(Asking(), 8)
    size.set(1)
    resumed.load_state_dict(through_json(size))
    assert resumed.state_dict() == size.state_dict()
    assert resumed.value == 1


@pytest.mark.parametrize(
    ("schedule", "changes", "message"),
    [
        (Constant(), {}, "the batch-size schedule was LossChange and is Constant now"),
        (
            LossChange(maximum=64),
            {"state": {"size": 8.0}},
            r"LossChange has the state .*'decided_at'.* saved state has",
        ),
    ],
)
def test_another_schedule_or_version_is_refused_or_begins(schedule, changes, message) -> None:
    size, state = BatchSize(schedule, 8), {**BatchSize(LossChange(maximum=64), 8).state_dict(), **changes}
    with pytest.raises(ValueError, match=message):
        size.load_state_dict(state)
    size.load_state_dict(state, allow_inexact=True)
    assert size.value == 8


def test_a_size_that_was_saved_has_to_do_for_the_ranks_of_now() -> None:
    saved = BatchSize(Constant(), 8)
    saved.set(2)
    with pytest.raises(ValueError, match="the batch size that was saved: 2 samples in all are fewer than the 4 ranks"):
        BatchSize(Constant(), 8, world_size=4).load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match="the batch size set by hand must be a whole number"):
        saved.load_state_dict({**saved.state_dict(), "manual": 2**31})


@pytest.mark.parametrize(("schedule", "world_size", "expected"), [(Exact, 1, 1), (Asking, 1, 1), (Asking, 4, 4)])
def test_an_inexact_one_is_raised_to_a_sample_a_rank(schedule: type[Asking], world_size: int, expected: int) -> None:
    state = {**asked(BatchDecision(1)).state_dict(), "name": schedule.__name__}
    resumed = BatchSize(schedule(), 8, world_size)
    resumed.load_state_dict(state)
    assert resumed.value == expected
    exact = BatchSize(Exact(), 8, world_size=4)
    with pytest.raises(ValueError, match="1 samples in all are fewer than the 4 ranks"):
        exact.load_state_dict({**state, "name": "Exact"})
