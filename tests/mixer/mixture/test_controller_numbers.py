import math
from typing import Any

import numpy as np
import pytest

from mixer.measurements import (
    EvaluationLoss,
    GradientNoise,
    GradientNorm,
    Gradients,
    LearningRate,
    Loss,
    MeanLoss,
    Noise,
    Rates,
)
from mixer.measurements.gradients import GradientStatistics
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.counted_units import check_counted
from mixer.mixture.loss_units import LossUnits
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import Decision, Fixed, Observation, Policy, Uniform
from mixer.schedules import BatchDecision, BatchObservation, Constant, Schedule
from mixer.utils.errors import InvalidTypeError
from tests.mixer.kinds import parted
from tests.mixer.mixture.test_controller import LENGTHS, Recording, make_mixing, streams_of, through_json
from tests.refusals import refused


class Sizes(Schedule):
    """Asks for the next of the given sizes and keeps what it observed."""

    needs = (GradientNoise(),)

    def __init__(self, *sizes: float, unit: str | None = None, **bounds: int):
        super().__init__(**bounds)
        self.sizes, self.unit, self.observations = sizes, unit, []

    def update(self, observation: BatchObservation) -> BatchDecision:
        self.observations.append(observation)
        return BatchDecision(self.sizes[min(len(self.observations), len(self.sizes)) - 1])


def sized(schedule: Schedule, policy: Policy | None = None, budget: Budget | None = None, **clock: object) -> Mixing:
    budget = Budget(epochs=5) if budget is None else budget
    ticking = Clock(8, 100, budget, is_constant=schedule.is_constant, **clock)
    return Mixing(Planner(streams_of(**LENGTHS), seed=0), policy or Uniform(), ticking, BatchSize(schedule, 8))


def gradients(variance: float = 4.0, squared_norm: float = 1.0) -> GradientStatistics:
    ones, gram = np.ones(3), np.full((3, 3), squared_norm) + np.eye(3) * variance / 2
    numbers = {"gram": gram, "variance": ones * variance, "squared_norm": ones * squared_norm}
    return GradientStatistics(**numbers, counts=np.full(3, 2), shares=ones / 3, gram_error=np.zeros((3, 3)))


def update(mixing: Mixing, **measured: object) -> None:
    plan = mixing.next_plan()
    rest, results = parted(measured)
    results = {Loss: np.array([1.0, 2.0, 3.0]), **results}
    mixing.observe(plan, plan.counts * np.array([10, 20, 30]), results, **rest)


def test_a_policy_sees_losses_in_units_of_their_first_ones_and_a_run_that_goes_on_keeps_them() -> None:
    def mixing(policy: Policy, names: str = "abc") -> Mixing:
        streams = streams_of(**{name: LENGTHS[name] for name in names})
        clock = Clock(8, sum(stream.num_samples for stream in streams), Budget(epochs=5))
        return Mixing(Planner(streams, seed=0), policy, clock, loss_units=LossUnits(len(names)))

    first, second, other = (Recording([2.0] * num) for num in (3, 3, 2))
    run = mixing(first)
    update(run)
    update(run, gradient_norm=2.5)
    assert [seen[Loss].tolist() for seen in first.observations] == [[1.0, 1.0, 1.0]] * 2
    state = through_json(run.state_dict())
    again = mixing(second)
    again.load_state_dict(state)
    plan = again.next_plan()
    again.observe(plan, plan.counts, {Loss: np.array([2.0, 3.0, 12.0])})
    assert second.observations[-1][Loss].tolist() == [2.0, 1.5, 4.0]
    changed = mixing(other, "ab")  # other streams: their first losses are those of now
    changed.load_state_dict(state, allow_inexact=True)
    plan = changed.next_plan()
    changed.observe(plan, plan.counts, {Loss: np.array([2.0, 3.0])})
    assert other.observations[-1][Loss].tolist() == [1.0, 1.0]


class TestWhatTheScheduleSees:
    def test_every_number_of_the_step_and_of_the_run(self) -> None:
        schedule = Sizes(20, 20)
        mixing = sized(schedule, Fixed([2, 1, 1]))
        noise = Noise(0.5, 7.0)
        labels = np.array([1, 2, 3])
        update(mixing, loss=1.5, gradient_norm=2.5, learning_rate=Rates(0.5, 1.0), noise=noise, labels=labels)
        (seen,) = schedule.observations
        assert (seen.step, seen.progress, seen.num_epochs_done) == (1, 8 / 500, 0)
        assert (seen.num_samples, seen.num_tokens, seen.batch_size) == (8, 40 + 40 + 60, 8)
        assert (seen[MeanLoss], seen[GradientNorm], seen[GradientNoise]) == (1.5, 2.5, noise)
        assert seen[LearningRate] == Rates(0.5, 1.0)
        plan = mixing.next_plan()
        ahead = mixing.schedule_positions(plan, plan.counts)
        assert ahead == pytest.approx([65 * 28 / 500, 65 * 8 / 500])  # 65 steps of 8 in five epochs
        mixing.observe(plan, plan.counts, {}, labels=labels)
        assert (mixing.clock.schedule_position, mixing.clock.num_samples) == (ahead[0], 28)
        second = schedule.observations[1]
        assert (second.batch_size, second.num_samples, seen.num_labels, second.num_labels) == (20, 28, 6, 12)

    def test_what_was_not_measured_is_not_a_number_and_noise_that_of_the_streams_gradients(self) -> None:
        mixing, measured = sized(schedule := Sizes(8)), gradients()
        update(mixing)
        update(mixing, gradients=measured)
        update(mixing, gradients=measured, noise=Noise(9.0, 9.0))
        update(mixing, gradients=gradients(variance=math.nan))
        update(mixing, gradients=gradients(squared_norm=math.nan))
        expected = [None, Noise(*measured.noise), Noise(9.0, 9.0), None, None]
        assert [seen[GradientNoise] for seen in schedule.observations] == expected
        seen = schedule.observations[0]
        assert (seen[MeanLoss], seen[GradientNorm], seen[LearningRate]) == (None, None, None)


class TestSize:
    def test_its_decision_rules_the_next_step(self) -> None:
        mixing = sized(Sizes(20, 13, 50, learning_rate="linear"))
        totals = []
        for _ in range(4):
            totals.append(int(mixing.next_plan().counts.sum()))
            mixing.observe(mixing.next_plan(), np.ones(3, dtype=np.int64))
            assert mixing.clock.batch_size == mixing.batch_size
        assert totals[:2] == [8, 20]
        assert mixing.learning_rate_factor == 50 / 8

    def test_a_schedule_by_epochs_sees_that_one_has_ended(self) -> None:
        for unit, expected in (("epochs", 1), ("samples", 0)):
            schedule = Sizes(60)
            schedule.unit = unit  # type: ignore[assignment]
            mixing = sized(schedule, drop_unit=1)
            mixing.set_batch_size(60)
            update(mixing)
            assert schedule.observations[0].num_epochs_done == expected


class TestWhatThePolicySees:
    def test_all_that_was_measured_is_handed_on(self) -> None:
        policy = Recording([2, 1, 1])
        measured = gradients()
        evaluated = np.array([0.1, 0.2, 0.3])
        mixing = make_mixing(policy)
        update(mixing, gradients=measured, gradient_norm=0.7, evaluation_losses=evaluated)
        (seen,) = policy.observations
        assert seen[Gradients] is measured
        assert seen[GradientNorm] == 0.7
        assert (seen[Loss].tolist(), seen.batch_size) == ([1.0, 2.0, 3.0], 8)
        assert seen[EvaluationLoss] is evaluated
        assert (seen.shares.tolist(), seen.tokens_per_sample) == ([0.5, 0.25, 0.25], None)
        assert seen.active.tolist() == [True] * 3

    def test_what_was_not_measured_is_missing_and_tokens_are_added_up(self) -> None:
        mixing = make_mixing(policy := Recording([2, 1, 1]))
        assert (mixing.num_tokens.tolist(), mixing.num_tokens.dtype) == ([0, 0, 0], np.int64)
        for _ in range(2):
            update(mixing)
        assert (mixing.num_tokens.tolist(), mixing.clock.num_tokens) == ([80, 80, 120], 280)
        for seen in policy.observations:
            assert math.isnan(seen.number(GradientNorm))
            assert (seen[Gradients], seen[EvaluationLoss]) == (None, None)
            assert np.isnan(seen.by_stream(EvaluationLoss)).tolist() == [True] * 3
            with refused("measured", kind=InvalidTypeError):
                seen["losses"]  # type: ignore[index]

    def test_shares_and_lengths_are_of_tokens_in_that_unit(self) -> None:
        policy = Recording([1, 1, 2], unit="tokens")
        mixing = make_mixing(policy)
        update(mixing)
        (seen,) = policy.observations
        assert seen.tokens_per_sample.tolist() == [10.0, 20.0, 30.0]
        assert seen.shares == pytest.approx(np.array([10, 20, 60]) / 90)


class OnTop(Recording):
    """Has the first two streams share the batch, and samples of the third, or what it is told to, on top."""

    def __init__(self, *additional: float):
        super().__init__()
        self.additional = np.array(additional)

    def decision(self) -> Decision:
        return Decision(np.array([1.0, 1.0, 0.0]), additional=self.additional)


class TestOnTop:
    def test_a_plan_says_which_samples_do_not_count_in_the_clock(self) -> None:
        mixing = make_mixing(OnTop(0.0, 0.0, 0.5))
        plan = mixing.next_plan()
        assert (plan.counts.tolist(), plan.are_additional.tolist()) == ([4, 4, 4], [False, False, True])
        mixing.observe(plan, np.array([40, 40, 1000]))
        assert (mixing.clock.num_samples, mixing.clock.num_tokens) == (8, 80)
        assert mixing.num_tokens.tolist() == [40, 40, 1000]
        mixing.set_weights([1, 1, 2])  # by hand there is nothing on top
        assert (mixing.next_plan().counts.tolist(), mixing.next_plan().are_additional) == ([2, 2, 4], None)

    @pytest.mark.parametrize(
        "additional",
        [
            *[(0.0, 0.0, wrong) for wrong in (math.nan, math.inf, -0.5)],
            *[(0.0, 0.5), (0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 0.5)],
        ],
    )
    def test_what_is_no_multiple_or_beside_a_share_is_refused(self, additional: Any) -> None:
        with refused("additional"):
            make_mixing(OnTop(*additional))

    @pytest.mark.parametrize(("factor", "most"), [(0.5, 8), (1.0, 9), (1.2, 11)])
    def test_the_most_of_a_stream(self, factor: float, most: int) -> None:
        assert make_mixing(OnTop(0.0, 0.0, factor)).most_of_a_stream == most
        assert make_mixing().most_of_a_stream == 8


class TestAside:
    def test_an_epoch_aside_moves_nothing_and_begins_at_its_start(self) -> None:
        mixing = sized(Sizes(8), OnTop(0.0, 0.0, 0.5), drop_unit=1)
        update(mixing)
        before = through_json(mixing.state_dict())
        aside = mixing.preview_copy()
        assert (aside.clock.step, aside.seen.tolist()) == (0, mixing.seen.tolist())
        totals = []
        while not aside.clock.num_epochs_done:
            plan = aside.next_plan()
            totals.append(plan.total)
            aside.count_untrained(plan)
        assert totals == [12] * 12  # of 100 samples 4 are too few for a batch of 8
        assert (aside.clock.num_samples, aside.clock.num_tokens) == (96, 0)
        assert through_json(mixing.state_dict()) == before

    def test_losses_are_weighed_by_the_policy_or_the_streams(self) -> None:
        assert not make_mixing().weighs_losses
        assert make_mixing(Recording([1, 1, 1], loss_weights=[1, 2, 1])).weighs_losses
        assert make_mixing(streams=[Stream("a", range(9), loss_weight=2.0), Stream("b", range(9))]).weighs_losses


@pytest.mark.parametrize(
    ("make", "tokens", "skipped", "option"),
    [
        (lambda: make_mixing(Fixed([1, 1, 2], unit="tokens")), [5, 0, 5], None, "unit='tokens'"),
        (lambda: sized(Constant(8), budget=Budget(tokens=900)), [5, 0, 5], None, "A budget in tokens"),
        (lambda: sized(Sizes(8, unit="tokens")), [5, 0, 5], None, "batch_size=Sizes"),
        (lambda: make_mixing(Fixed([1, 1, 0], unit="tokens")), [5, 0, 0], None, "unit='tokens'"),
        (lambda: make_mixing(Uniform(unit="tokens"), 9), [5, 0, 5], [0, 2, 0], "unit='tokens'"),
        (lambda: make_mixing(Uniform(unit="tokens"), 3), [5, 0, 5], None, "unit='tokens'"),
        (lambda: make_mixing(Fixed([1, 1, 2], unit="tokens")), [1, 1, 1], None, None),
        # A stream without samples needs none, nor one whose samples are all left out, or where nobody asks.
        (lambda: make_mixing(Fixed([1, 0, 1], unit="tokens")), [5, 0, 5], None, None),
        (lambda: make_mixing(Uniform(unit="tokens"), 9), [5, 0, 5], [0, 3, 0], None),
        (lambda: sized(Sizes(8)), [0, 0, 0], None, None),
    ],
)
def test_who_needs_them_and_which_streams_have_none_is_named(make, tokens, skipped, option) -> None:
    mixing = make()
    counted = (np.array(tokens), None if skipped is None else np.array(skipped))
    if option is None:
        check_counted(mixing, mixing.next_plan(), *counted)
        return
    with refused(option, found=["b"]):
        check_counted(mixing, mixing.next_plan(), *counted)


class TestRestart:
    def test_a_new_run_begins_and_what_was_set_by_hand_stays(self) -> None:
        mixing = sized(Sizes(20), Recording([1, 1, 2], [2, 1, 1]))
        update(mixing)
        mixing.set_weights([1, 2, 1])
        mixing.set_batch_size(12)
        other = sized(Sizes(24), Recording([1, 1, 2]))
        size = BatchSize(Sizes(24), 16)
        mixing.restart(other.planner, other.clock, size)
        assert mixing.planner is other.planner
        assert mixing.clock is other.clock
        assert (mixing.seen.tolist(), mixing.num_tokens.tolist()) == ([0, 0, 0], [0, 0, 0])
        assert (mixing.weights["b"], mixing.batch_size, mixing.clock.batch_size) == (0.5, 12, 12)
        mixing.set_batch_size(None)
        assert (mixing.batch_size, mixing.initial_batch_size) == (16, 16)

    def test_streams_that_are_not_there_at_the_start_are_refused(self) -> None:
        streams = [Stream("a", range(9)), Stream("late", range(9), enters_at=0.5)]
        with refused("weights"):
            make_mixing(Fixed([0, 1]), streams=streams)
        mixing = make_mixing(policy := Recording([0.5, 0.5]), streams=streams)
        mixing.restart(mixing.planner, mixing.clock, mixing.size)
        assert [mixture.is_active.tolist() for mixture in policy.started] == [[True, False]] * 2


class TestDroppedRests:
    def test_a_batch_that_has_grown_passes_over_the_rest_of_a_single_stream(self) -> None:
        clock = Clock(4, 10, Budget(epochs=3), drop_unit=1, is_constant=False)
        mixing = Mixing(Planner([Stream("only", range(10))], seed=1), Uniform(), clock, BatchSize(Sizes(8), 4))
        plan = mixing.next_plan()
        mixing.observe(plan, np.ones(1, dtype=np.int64))
        assert (mixing.clock.num_epochs_done, mixing.clock.dropped_samples) == (1, 6)
        plan = mixing.next_plan()
        assert (plan.starts.tolist(), plan.counts.tolist()) == ([10], [8])
        assert mixing.unique.tolist() == [4]
        assert not mixing.drop_rest()

    def test_a_size_by_hand_that_leaves_no_whole_batch_ends_the_epoch_with_the_next_plan(self) -> None:
        mixing = sized(Sizes(8), drop_unit=1)
        update(mixing)
        mixing.set_batch_size(95)
        assert mixing.next_plan() is None
        assert (mixing.clock.num_epochs_done, mixing.clock.step_in_epoch) == (1, 0)
        assert mixing.next_plan().total == 95


class TestState:
    def test_an_inexact_resume_counts_the_tokens_of_the_streams_by_name(self) -> None:
        mixing = make_mixing(Fixed([2, 1, 1]))
        update(mixing)
        resumed = make_mixing(Fixed([1, 1, 1]), streams=streams_of(c=50, new=5, a=20))
        resumed.load_state_dict(mixing.state_dict(), allow_inexact=True)
        assert resumed.num_tokens.tolist() == [60, 0, 40]
        assert resumed.num_tokens.dtype == np.int64
        assert resumed.weights == pytest.approx({"c": 1 / 3, "new": 1 / 3, "a": 1 / 3})
        assert resumed.next_plan().staleness == 0

    def test_a_policy_of_another_kind_starts_anew_where_that_is_allowed(self) -> None:
        mixing = make_mixing(Fixed([2, 1, 1]))
        update(mixing)
        resumed = make_mixing(Recording([0, 1, 1]))
        with refused("mixing"):
            resumed.load_state_dict(mixing.state_dict())
        resumed.load_state_dict(mixing.state_dict(), allow_inexact=True)
        assert resumed.weights == {"a": 0.0, "b": 0.5, "c": 0.5}
        assert (resumed.clock.step, resumed.next_plan().staleness) == (1, 0)


def test_samples_that_are_left_out_add_up_and_come_back() -> None:
    mixing, resumed = make_mixing(), make_mixing()
    for _ in range(2):
        update(mixing, skipped=np.array([1, 0, 2]))
    assert mixing.skipped.tolist() == [2, 0, 4]
    resumed.load_state_dict(through_json(mixing.state_dict()))
    assert resumed.skipped.tolist() == [2, 0, 4]
    wider = make_mixing(streams=streams_of(**LENGTHS, new=7))
    wider.clock = Clock(8, 100, Budget(epochs=5))
    wider.load_state_dict(through_json(mixing.state_dict()), allow_inexact=True)
    assert wider.skipped.tolist() == [2, 0, 4, 0]
    assert wider.num_tokens.tolist() == [*mixing.num_tokens.tolist(), 0]


class Lost(Recording):
    def update(self, observation: Observation) -> Decision:
        raise ValueError(self.weights[0])

    def decision(self) -> Decision:
        return Decision([1, 1, 1]) if isinstance(self.weights[0], str) else self.weights[0]


@pytest.mark.parametrize(("said", "notes"), [("lost", 1), ("lost at step 1", 0)])
def test_who_raised_an_error_and_when_is_said_once(said: str, notes: int) -> None:
    with pytest.raises(ValueError, match=said) as error:
        update(make_mixing(Lost(said)))
    assert getattr(error.value, "__notes__", []) == ["Raised by the policy Lost at step 1."] * notes
    with refused("mixing", kind=InvalidTypeError):
        make_mixing(Lost(3))
