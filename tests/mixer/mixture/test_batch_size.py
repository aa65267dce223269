import json
import math
from typing import Any

import numpy as np
import pytest

from mixer.measurements import MeanLoss
from mixer.mixture.batch_size import BatchSize
from mixer.schedules import BatchDecision, BatchObservation, Constant, Function, LossChange, Schedule
from tests.refusals import refused


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
    ("wrong", "error"),
    [*[(wrong, ValueError) for wrong in (0, -3)], *[(wrong, TypeError) for wrong in (2.0, True, "8", np.float64(2))]],
)
def test_no_size_by_hand_is_refused(wrong: Any, error: type[Exception]) -> None:
    with refused("set_batch_size", kind=error):
        BatchSize(Constant(), 8).set(wrong)


def test_the_first_size_has_to_be_within_the_bounds_and_each_rank_needs_a_sample() -> None:
    with refused("batch_size"):
        BatchSize(LossChange(minimum=5, maximum=64), 4)
    with refused("batch_size"):
        BatchSize(LossChange(initial=2, maximum=64), 8, world_size=4)
    with refused("batch_size"):
        BatchSize(Constant(3), 8, world_size=4)
    size = BatchSize(Function(lambda step, batch_size: 8 - step), 8, world_size=4)
    with refused("batch_size"):
        size.set(3)
    size.update(observation(4, 5))
    with refused("batch_size"):
        size.update(observation(5, 4))


@pytest.mark.parametrize(
    ("decision", "error"),
    [
        *[(BatchDecision(number), ValueError) for number in (math.nan, math.inf, 0.0, -1.0)],
        *[(BatchDecision(8, factor), ValueError) for factor in (math.nan, math.inf, -0.1)],
        *[(wrong, TypeError) for wrong in (3, None, BatchDecision(True), BatchDecision("8"))],  # type: ignore[arg-type]
    ],
)
def test_what_a_schedule_must_not_ask_for(decision: Any, error: type[Exception]) -> None:
    with refused("batch_size", kind=error):
        asked(decision)
    begins = type("Begins", (Asking,), {"start": lambda self, initial: decision})
    with refused("batch_size", kind=error):
        BatchSize(begins(), 8)


def test_a_step_has_no_more_samples_than_a_list_may() -> None:
    size = BatchSize(Exact(BatchDecision(2**31 - 1), BatchDecision(2**31)), 8)
    size.update(observation(1, 8))
    assert size.value == 2**31 - 1
    with refused("batch_size"):
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
    ("schedule", "changes", "option"),
    [(Constant(), {}, "batch_size"), (LossChange(maximum=64), {"state": {"size": 8.0}}, "LossChange")],
)
def test_another_schedule_or_version_is_refused_or_begins(schedule, changes, option) -> None:
    size, state = BatchSize(schedule, 8), {**BatchSize(LossChange(maximum=64), 8).state_dict(), **changes}
    with refused(option):
        size.load_state_dict(state)
    size.load_state_dict(state, allow_inexact=True)
    assert size.value == 8


def test_a_size_that_was_saved_has_to_do_for_the_ranks_of_now() -> None:
    saved = BatchSize(Constant(), 8)
    saved.set(2)
    with refused("batch_size"):
        BatchSize(Constant(), 8, world_size=4).load_state_dict(saved.state_dict())
    with refused("the batch size set by hand"):
        saved.load_state_dict({**saved.state_dict(), "manual": 2**31})


@pytest.mark.parametrize(("schedule", "world_size", "expected"), [(Exact, 1, 1), (Asking, 1, 1), (Asking, 4, 4)])
def test_an_inexact_one_is_raised_to_a_sample_a_rank(schedule: type[Asking], world_size: int, expected: int) -> None:
    state = {**asked(BatchDecision(1)).state_dict(), "name": schedule.__name__}
    resumed = BatchSize(schedule(), 8, world_size)
    resumed.load_state_dict(state)
    assert resumed.value == expected
    exact = BatchSize(Exact(), 8, world_size=4)
    with refused("batch_size"):
        exact.load_state_dict({**state, "name": "Exact"})
