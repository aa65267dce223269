"""What rules the size of steps: a schedule within its bounds, or a size set by hand."""

import json
import math

import numpy as np
import pytest

from mixer.mixture.batch_size import BatchSize
from mixer.schedules import BatchDecision, BatchObservation, Constant, Function, LossChange, Ramp, Schedule


class Asking(Schedule):
    """Asks for what it is told to."""

    def __init__(self, *decisions: BatchDecision, **bounds: int):
        super().__init__(**bounds)
        self.decisions = decisions

    def update(self, observation: BatchObservation) -> BatchDecision:
        return self.decisions[observation.step - 1]


def observation(step: int, batch_size: int, progress: float = 0.5) -> BatchObservation:
    return BatchObservation(step, progress, 0, step * 8, 0, batch_size)


def test_the_schedule_begins_with_its_own_size() -> None:
    assert BatchSize(Constant(12), 8).value == 12
    assert BatchSize(Constant(), 8).value == 8
    assert BatchSize(Ramp(64, 100, unit="samples", initial=16), 8).value == 16


def test_the_first_size_has_to_be_within_the_bounds() -> None:
    with pytest.raises(ValueError, match=r"first size comes from the training arguments\. initial=4 is not"):
        BatchSize(LossChange(minimum=5, maximum=64), 4)


def test_by_hand_rules_until_it_is_given_back() -> None:
    size = BatchSize(Function(lambda step, batch_size: 8 + step), 8)
    size.set(100)
    size.update(observation(1, 100))
    assert size.value == 100
    size.set(None)
    assert size.value == 9


def test_whole_numbers_of_numpy_are_fine() -> None:
    size = BatchSize(Constant(np.int64(12)), 8)  # type: ignore[arg-type]
    size.set(np.int64(5))  # type: ignore[arg-type]
    assert json.loads(json.dumps({**size.state_dict(), "initial": size.initial}))["manual"] == 5


@pytest.mark.parametrize("wrong", [0, -3])
def test_no_size_by_hand_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"set_batch_size must be at least 1 sample, got {wrong}"):
        BatchSize(Constant(), 8).set(wrong)


@pytest.mark.parametrize("wrong", [2.0, True, "8", math.nan, np.float64(2)])
def test_what_is_no_whole_size_by_hand_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="set_batch_size must be a whole number of samples"):
        BatchSize(Constant(), 8).set(wrong)  # type: ignore[arg-type]


def test_each_rank_needs_a_sample() -> None:
    size = BatchSize(Function(lambda step, batch_size: 8 - step), 8, world_size=4)
    with pytest.raises(ValueError, match="set_batch_size: 3 samples in all are fewer than the 4 ranks"):
        size.set(3)
    size.update(observation(4, 5))
    with pytest.raises(ValueError, match=r"Function at step 5: 3 samples in all are fewer than the 4 ranks"):
        size.update(observation(5, 4))
    with pytest.raises(ValueError, match="batch_size: 3 samples in all are fewer than the 4 ranks"):
        BatchSize(Constant(3), 8, world_size=4)


def test_a_rule_stops_at_one_sample_a_rank() -> None:
    size = BatchSize(LossChange(interval=1, unit="steps", maximum=64), 8, world_size=4)
    for step in range(1, 40):
        size.update(BatchObservation(step, 0.5, 0, 0, 0, size.value, loss=1.0))
    assert size.value == 4


@pytest.mark.parametrize("asked", [math.nan, math.inf, 0.0, -1.0])
def test_what_a_schedule_must_not_ask_for(asked: float) -> None:
    size = BatchSize(Asking(BatchDecision(asked)), 8)
    with pytest.raises(ValueError, match=r"Asking at step 1 asks for .* samples; it must be finite and above 0"):
        size.update(observation(1, 8))


@pytest.mark.parametrize("factor", [math.nan, math.inf, -0.5])
def test_what_a_schedule_must_not_do_to_the_learning_rate(factor: float) -> None:
    size = BatchSize(Asking(BatchDecision(8, factor)), 8)
    with pytest.raises(ValueError, match=r"Asking at step 1 multiplies the learning rate by"):
        size.update(observation(1, 8))


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_follows_by_rule(rule: str, factor: float) -> None:
    size = BatchSize(Constant(8, learning_rate=rule), 8)  # type: ignore[arg-type]
    assert size.learning_rate_factor == 1.0
    size.set(32)
    assert size.learning_rate_factor == factor


def test_a_schedule_may_have_a_factor_of_its_own() -> None:
    size = BatchSize(Asking(BatchDecision(16, 0.25)), 8)
    size.update(observation(1, 8))
    assert size.learning_rate_factor == 0.25
    size.set(8)
    assert size.learning_rate_factor == 1.0


def test_the_state_goes_on() -> None:
    sizes = [BatchSize(LossChange(interval=1, unit="steps", maximum=64), 8) for _ in range(2)]
    first, second = sizes
    for step in range(1, 9):
        first.update(BatchObservation(step, 0.5, 0, 0, 0, first.value, loss=1 / step))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for step in range(9, 30):
        for size in sizes:
            size.update(BatchObservation(step, 0.5, 0, 0, 0, size.value, loss=1 / step))
        assert first.value == second.value


def test_another_schedule_is_refused_or_begins() -> None:
    state, other = BatchSize(LossChange(maximum=64), 8).state_dict(), BatchSize(Constant(), 8)
    with pytest.raises(ValueError, match="the batch-size schedule was LossChange and is Constant now"):
        other.load_state_dict(state)
    other.load_state_dict(state, allow_inexact=True)
    assert other.value == 8


def test_what_an_older_version_of_a_schedule_remembered_is_refused_or_begins() -> None:
    older = BatchSize(LossChange(maximum=64), 8).state_dict()
    older["state"] = {"initial": 8, "size": 8.0, "losses": [1.0, 2.0]}
    size = BatchSize(LossChange(maximum=64), 8)
    with pytest.raises(ValueError, match=r"LossChange has the state .*'decided_at'.*, but the saved state has"):
        size.load_state_dict(older)
    size.load_state_dict(older, allow_inexact=True)
    assert size.value == 8


def test_growth_is_bound_from_the_first_size_on() -> None:
    size = BatchSize(Asking(BatchDecision(100), max_growth=1.5), 8)
    assert size.value == 8
    size.update(observation(1, 8))
    assert size.value == 12


def test_a_size_that_was_saved_has_to_do_for_the_ranks_of_now() -> None:
    saved = BatchSize(Constant(), 8)
    saved.set(2)
    with pytest.raises(ValueError, match="the batch size that was saved: 2 samples in all are fewer than the 4 ranks"):
        BatchSize(Constant(), 8, world_size=4).load_state_dict(saved.state_dict())


@pytest.mark.parametrize(("is_exact", "world_size", "expected"), [(True, 1, 1), (False, 1, 1), (False, 4, 4)])
def test_one_that_is_not_exact_is_raised_to_a_sample_a_rank(is_exact: bool, world_size: int, expected: int) -> None:
    saved = BatchSize(Asking(BatchDecision(1)), 8)
    saved.update(observation(1, 8))
    schedule = Asking(BatchDecision(1))
    schedule.is_exact = is_exact
    resumed = BatchSize(schedule, 8, world_size)
    resumed.load_state_dict(saved.state_dict())
    assert resumed.value == expected


class Exact(Asking):
    is_exact = True


@pytest.mark.parametrize("decision", [3, None, BatchDecision(True), BatchDecision("8")])  # type: ignore[arg-type]
def test_what_is_no_decision_on_a_number_is_refused(decision: BatchDecision) -> None:
    with pytest.raises(TypeError, match=r"Asking at step 1: a schedule decides by a BatchDecision of a number"):
        BatchSize(Asking(decision), 8).update(observation(1, 8))


def test_a_step_has_no_more_samples_than_a_list_may() -> None:
    size = BatchSize(Exact(BatchDecision(2**31 - 1), BatchDecision(2**31)), 8)
    size.update(observation(1, 8))
    assert size.value == 2**31 - 1
    with pytest.raises(ValueError, match=r"Exact at step 2 asks for 2\.15e\+09 samples; a step has at most"):
        size.update(observation(2, 8))


def test_a_learning_rate_of_nothing_is_one() -> None:
    size = BatchSize(Asking(BatchDecision(8, 0.0), BatchDecision(8, -0.1)), 8)
    size.update(observation(1, 8))
    with pytest.raises(ValueError, match=r"multiplies the learning rate by -0\.1; it must be finite and 0 or more"):
        size.update(observation(2, 8))


@pytest.mark.parametrize(("said", "notes"), [("lost", 1), ("lost at step 1", 0)])
def test_who_raised_an_error_and_when_is_said_once(said: str, notes: int) -> None:
    class Lost(Schedule):
        def update(self, observation: BatchObservation) -> BatchDecision:
            raise ValueError(said)

    with pytest.raises(ValueError, match=said) as error:
        BatchSize(Lost(), 8).update(observation(1, 8))
    assert getattr(error.value, "__notes__", []) == ["Raised by the batch-size schedule Lost at step 1."] * notes


def test_a_size_by_hand_of_one_sample_and_a_small_factor_come_back() -> None:
    size, resumed = BatchSize(Asking(BatchDecision(8, 0.5)), 8), BatchSize(Asking(), 8)
    size.update(observation(1, 8))
    size.set(1)
    resumed.load_state_dict(json.loads(json.dumps(size.state_dict())))
    assert resumed.state_dict() == size.state_dict()
    assert resumed.value == 1
