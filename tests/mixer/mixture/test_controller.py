import copy
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.measurements import EvaluationLoss, Loss
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import FORMAT_VERSION, Mixing
from mixer.mixture.groups import Grouping
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.policies import (
    Decision,
    Fixed,
    Function,
    Hold,
    LossChange,
    Mixture,
    Observation,
    Policy,
    Proportional,
    Scheduled,
    Smoothed,
    Uniform,
    WarmUp,
)
from mixer.utils.validation import MAX_SAMPLES_PER_STEP
from tests.refusals import refused

LENGTHS = {"a": 20, "b": 30, "c": 50}


class Recording(Policy):
    """Gives the next of the given weights and keeps what it observed."""

    needs = (Loss(),)

    def __init__(self, *weights: Any, loss_weights: Any = None, unit: Any = "samples"):
        super().__init__(unit=unit)
        self.weights, self.loss_weights = weights, loss_weights
        self.observations: list[Observation] = []
        self.started: list[Mixture] = []

    def decision(self) -> Decision:
        return Decision(self.weights[min(len(self.observations), len(self.weights) - 1)], self.loss_weights)

    def start(self, mixture: Mixture) -> Decision:
        self.started.append(mixture)
        return self.decision()

    def update(self, observation: Observation) -> Decision:
        self.observations.append(observation)
        return self.decision()


def streams_of(**lengths: int) -> list[Stream]:
    return [Stream(name, range(length)) for name, length in lengths.items()]


def make_mixing(
    policy: Policy | None = None,
    batch_size: int = 8,
    num_epochs: float = 5,
    streams: list[Stream] | None = None,
    seed: int = 0,
    **planning: object,
) -> Mixing:
    streams = streams_of(**LENGTHS) if streams is None else streams
    clock = Clock(batch_size, sum(stream.num_samples for stream in streams), Budget(epochs=num_epochs))
    return Mixing(Planner(streams, seed, **planning), policy or Uniform(), clock)


def losses_at(step: int, num_streams: int) -> np.ndarray:
    losses = np.random.default_rng(step).random(num_streams) * np.arange(1, num_streams + 1)
    return np.where(np.random.default_rng(step + 9_999).random(num_streams) < 0.1, np.nan, losses)


def one_step(mixing: Mixing) -> StepPlan:
    plan = mixing.next_plan()
    losses = losses_at(plan.index, len(mixing.names))
    evaluated = mixing.take_evaluation_losses()
    measured = {Loss: losses, **({} if evaluated is None else {EvaluationLoss: evaluated})}
    mixing.observe(plan, plan.counts * (1 + np.arange(len(mixing.names))), measured)
    return plan


def run_to_the_end(mixing: Mixing, limit: int = 1_000) -> list[StepPlan]:
    plans: list[StepPlan] = []
    while len(plans) < limit and (plan := mixing.next_plan()) is not None:
        mixing.observe(plan, np.zeros(len(mixing.names), dtype=np.int64), {Loss: np.ones(len(mixing.names))})
        plans.append(plan)
    return plans


def through_json(state: dict) -> dict:
    return json.loads(json.dumps(state, allow_nan=False))


def assert_same_plan(first: StepPlan, second: StepPlan) -> None:
    assert first.fingerprint() == second.fingerprint()
    assert first.policy_weights.tolist() == second.policy_weights.tolist()
    assert first.staleness == second.staleness


def test_a_plan_says_what_it_was_made_of_and_one_made_ahead_is_stale() -> None:
    mixing = make_mixing(Recording([2.0, 1.0, 1.0], loss_weights=np.array([1.0, 2.0, 3.0])))
    plan = mixing.next_plan()
    assert (plan.step, plan.total, plan.staleness) == (1, 8, 0)
    assert plan.counts.tolist() == [4, 2, 2]
    assert plan.weights.tolist() == plan.policy_weights.tolist() == [0.5, 0.25, 0.25]
    assert plan.loss_weights.tolist() == [1.0, 2.0, 3.0]
    mixing.clock.tick()
    assert mixing.next_plan().staleness == 1


class TestObservation:
    def test_it_holds_what_the_step_was(self) -> None:
        policy = Recording([2, 1, 1], [1, 1, 1])
        mixing = make_mixing(policy)
        losses, tokens = np.array([0.5, np.nan, 2.0]), np.array([40, 0, 9])
        mixing.observe(mixing.next_plan(), tokens, {Loss: losses})
        (seen,) = policy.observations
        assert (seen.step, seen.progress) == (1, 1 / mixing.clock.max_steps)
        assert seen.weights.tolist() == [0.5, 0.25, 0.25]
        assert seen.counts.tolist() == seen.seen.tolist() == [4, 2, 2]
        assert seen.tokens.tolist() == [40, 0, 9]
        np.testing.assert_array_equal(seen[Loss], losses)
        assert seen[EvaluationLoss] is None
        one_step(mixing)
        assert [seen.seen.sum() for seen in policy.observations] == [8, 16]  # it is kept as it was

    def test_an_evaluation_is_seen_once_and_by_name(self) -> None:
        policy = Recording([1, 1, 1])
        mixing = make_mixing(policy)
        mixing.observe_evaluation({"c": 3.0, "other": 9.0})
        mixing.observe_evaluation({"a": 1.0})
        one_step(mixing)
        one_step(mixing)
        np.testing.assert_array_equal(policy.observations[0][EvaluationLoss], [1.0, np.nan, 3.0])
        assert policy.observations[1][EvaluationLoss] is None


def test_a_pass_over_hundreds_of_billions_of_samples_is_exact() -> None:
    total = 4 * 10**11
    sizes = [total - 10**10 - 10**7 - 1, 10**10, 10**7, 1]
    clock = Clock(MAX_SAMPLES_PER_STEP, total, Budget(samples=total))
    mixing = Mixing(Planner(streams_of(**dict(zip("abcd", sizes, strict=True))), 0), Proportional(), clock)
    while clock.progress < 1.0 and (plan := mixing.next_plan()) is not None:
        mixing.observe(plan, np.zeros(4, dtype=np.int64))
        done = int(mixing.seen.sum())
        off = [abs(int(seen) * total - done * size) for seen, size in zip(mixing.seen, sizes, strict=True)]
        assert max(off) <= total  # a sample
    assert mixing.seen.tolist() == sizes


def test_positions_that_a_float_would_round_survive_saving() -> None:
    mixing, resumed = (make_mixing(streams=streams_of(a=2**60 + 1, b=2**60 + 1)) for _ in range(2))
    state = mixing.state_dict()
    for own in state["planner"]["streams"].values():
        own["position"] = own["seen"] = 2**53 + 1
    resumed.load_state_dict(through_json(state))
    assert resumed.next_plan().starts.tolist() == [2**53 + 1] * 2


def test_it_is_what_was_seen_of_each_stream() -> None:
    mixing = make_mixing(Fixed([1, 1, 2]), batch_size=40)
    run_to_the_end(mixing, limit=3)
    assert mixing.seen.tolist() == [25, 25, 50]
    assert mixing.coverage == {"a": 1.0, "b": 25 / 30, "c": 1.0}
    assert mixing.stream_epochs.tolist() == [25 / 20, 25 / 30, 1.0]
    assert mixing.unique.tolist() == [20, 25, 50]


class TestForecast:
    def mixings(self) -> dict[str, Mixing]:
        ending = [Stream("a", range(20), max_epochs=1), Stream("b", range(30)), Stream("c", range(7), leaves_at=0.6)]
        grouped = [Stream(name, range(20), groups={"g": group}) for name, group in (("a", "x"), ("b", "x"), ("c", "y"))]
        return {
            "fixed": make_mixing(Fixed([3.0, 2.0, 1.3]), batch_size=7),
            "multinomial": make_mixing(Fixed([3.0, 2.0, 1.3]), batch_size=7, drawing="multinomial"),
            "dropping": single_stream(drop_unit=4),
            "ending": make_mixing(Uniform(), batch_size=5, streams=ending, num_epochs=2),
            "grouped": make_mixing(
                Uniform(), batch_size=5, streams=grouped, groupings=[Grouping("g", max_epochs={"x": 1.2})]
            ),
        }

    @pytest.mark.parametrize("name", ["fixed", "multinomial", "dropping", "ending", "grouped"])
    def test_where_the_weights_stay_it_is_what_comes_and_moves_nothing(self, name: str) -> None:
        mixing, predicted, plans = self.mixings()[name], {}, {}
        for step in range(12):
            plan = mixing.next_plan()
            if plan is None:
                break
            plans[plan.step] = plan.fingerprint()
            before = through_json(mixing.state_dict())
            predicted[step] = {guess.step: guess.fingerprint() for guess in mixing.forecast()}
            assert through_json(mixing.state_dict()) == before
            mixing.observe(plan, np.zeros(len(mixing.names), dtype=np.int64), {Loss: np.ones(len(mixing.names))})
        plans |= {plan.step: plan.fingerprint() for plan in run_to_the_end(mixing)}
        assert len(predicted) > 5
        for guesses in predicted.values():
            assert guesses == {later: plan for later, plan in plans.items() if later in guesses}
            assert name != "fixed" or max(guesses) == mixing.clock.planned_steps

    def test_the_policy_is_not_asked_and_weights_set_by_hand_rule(self) -> None:
        mixing = make_mixing(policy := Recording([2.0, 1.0, 1.0], [1.0, 5.0, 1.0]))
        mixing.next_plan()
        assert all(plan.weights.tolist() == [0.5, 0.25, 0.25] for plan in mixing.forecast())
        assert policy.observations == []
        mixing.set_weights({"a": 0, "b": 1, "c": 3})
        assert next(mixing.forecast()).weights.tolist() == [0.0, 0.25, 0.75]


def single_stream(drop_unit: int = 0, num_epochs: float = 3, max_epochs: float | None = None) -> Mixing:
    streams = [Stream("only", range(10), max_epochs=max_epochs)]
    return Mixing(Planner(streams, seed=1), Uniform(), Clock(4, 10, Budget(epochs=num_epochs), drop_unit=drop_unit))


class TestSingleStream:
    def references(self, mixing: Mixing, plan: StepPlan) -> list[int]:
        (part,) = mixing.planner.rank_share(plan, 0, 1)
        return part.indices.tolist()

    def test_dropping_the_rest_begins_the_next_epoch_with_a_fresh_permutation(self) -> None:
        mixing = single_stream(drop_unit=4)
        plans = run_to_the_end(mixing, limit=4)
        assert [plan.total for plan in plans] == [4] * 4
        assert [int(plan.starts[0]) for plan in plans] == [0, 4, 10, 14]
        for first, second in zip(plans[::2], plans[1::2], strict=True):
            assert len({*self.references(mixing, first), *self.references(mixing, second)}) == 8
        assert (mixing.seen.tolist(), mixing.unique.tolist()) == ([16], [8])  # what was dropped does not count

    @pytest.mark.parametrize(
        ("drop_unit", "max_epochs", "expected"),
        [(0, 1.5, [4, 4, 2, 4, 1]), (4, 1, [4, 4]), (4, 0.9, [4, 4]), (4, 1.5, [4, 4, 4, 1]), (4, 1.9, [4] * 4)],
    )
    def test_the_run_ends_with_the_stream(self, drop_unit: int, max_epochs: float, expected: list[int]) -> None:
        mixing = single_stream(drop_unit, max_epochs=max_epochs)
        assert [plan.total for plan in run_to_the_end(mixing)] == expected
        assert mixing.is_exhausted


class TestSetWeights:
    def test_it_rules_the_next_plan_until_the_policy_gets_it_back(self) -> None:
        mixing = make_mixing(policy := Recording([1, 0, 0]))
        one_step(mixing)
        mixing.set_weights({"c": 3, "a": 1, "b": 0})
        assert mixing.weights == {"a": 0.25, "b": 0.0, "c": 0.75}
        assert [one_step(mixing).counts.tolist() for _ in range(2)] == [[2, 0, 6]] * 2
        assert policy.observations[-1].weights.tolist() == [0.25, 0.0, 0.75]
        mixing.set_weights(None)
        assert one_step(mixing).counts.tolist() == [8, 0, 0]

    def test_it_and_that_it_was_given_back_survive_saving(self) -> None:
        mixing, resumed = make_mixing(), make_mixing()
        mixing.set_weights({"a": 0.0, "b": 0.1, "c": 0.3})
        resumed.load_state_dict(through_json(mixing.state_dict()))
        assert resumed.manual_weights == mixing.manual_weights == pytest.approx({"a": 0.0, "b": 0.25, "c": 0.75})
        assert_same_plan(resumed.next_plan(), mixing.next_plan())
        resumed.load_state_dict(through_json(make_mixing().state_dict()))
        assert resumed.manual_weights is None

    def test_weights_that_do_not_fit_are_refused_and_change_nothing(self) -> None:
        mixing = make_mixing()
        with refused("set_weights"):
            mixing.set_weights([1, 2])
        assert mixing.manual_weights is None


class TestTokens:
    def test_shares_of_tokens_become_shares_of_samples(self) -> None:
        mixing = make_mixing(Fixed([1, 1, 2], unit="tokens"), batch_size=40)
        first = mixing.next_plan()
        assert first.counts.tolist() == [10, 10, 20]
        mixing.observe(first, first.counts * np.array([100, 400, 200]), {Loss: np.ones(3)})
        second = mixing.next_plan()
        np.testing.assert_allclose(second.weights, np.array([4, 1, 4]) / 9)

    def test_a_stream_not_seen_yet_counts_as_the_mean_of_the_others(self) -> None:
        mixing = make_mixing(Recording([1, 1, 0], [1, 1, 1], unit="tokens"))
        plan = mixing.next_plan()
        mixing.observe(plan, plan.counts * np.array([10, 30, 0]), {Loss: np.ones(3)})
        shares = np.array([1 / 10, 1 / 30, 1 / 20])
        np.testing.assert_allclose(mixing.next_plan().weights, shares / shares.sum())


POLICIES: dict[str, Callable[[], Policy]] = {
    "tokens": lambda: Fixed([1, 2, 4], unit="tokens"),
    "scheduled": lambda: Scheduled([(0.0, [1, 1, 1]), (1.0, [0, 1, 3])]),
    "function": lambda: Function(lambda step, weights: weights * (1 + np.array([0, 1, 2]) * 0.01)),
    "wrapped": lambda: Hold(WarmUp(Smoothed(LossChange(num_warmup_observations=2)), 4), 3),
}


class TestResume:
    @pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES.keys())
    @pytest.mark.parametrize("drawing", ["exact", "multinomial"])
    @settings(max_examples=10)
    @given(step=st.integers(0, 30), manual=st.booleans(), evaluation=st.sampled_from([None, 1.5, math.nan, -math.inf]))
    def test_saved_at_any_step_it_goes_on_alike(self, make_policy, drawing, step, manual, evaluation) -> None:
        mixing, resumed = make_mixing(make_policy(), drawing=drawing), make_mixing(make_policy(), drawing=drawing)
        for _ in range(step):
            one_step(mixing)
        if manual:
            mixing.set_weights([3, 1, 1])
        if evaluation is not None:
            mixing.observe_evaluation({"a": 1.0, "b": evaluation})
        resumed.load_state_dict(through_json(mixing.state_dict()))
        for later in range(8):
            if later == 4:
                mixing.set_weights(None)
                resumed.set_weights(None)
            assert_same_plan(one_step(resumed), one_step(mixing))
        assert resumed.state_dict() == mixing.state_dict()

    @pytest.mark.parametrize(
        ("saved", "other", "option"),
        [
            (Uniform(), {"policy": LossChange()}, "mixing"),
            (Hold(Uniform()), {"policy": Hold(LossChange())}, "mixing"),
            (None, {"batch_size": 9}, "batch_size"),
        ],
    )
    def test_another_run_is_refused_and_the_difference_named(self, saved, other, option) -> None:
        with refused(option):
            make_mixing(**other).load_state_dict(make_mixing(saved).state_dict())

    @pytest.mark.parametrize("version", [None, 0, FORMAT_VERSION + 1])
    def test_another_format_is_refused(self, version: int | None) -> None:
        state = {**make_mixing().state_dict(), "format": version}
        with refused("format"):
            make_mixing().load_state_dict(state)


class TestDecision:
    @pytest.mark.parametrize(
        ("weights", "factors"),
        [
            ([1, 2, 5], {"b": 1.0, "c": 0.5, "a": 2.0}),
            ({"c": 5.0, "a": 1.0, "b": 2.0}, [2.0, 1.0, 0.5]),
            (np.array([1, 2, 5]), None),
        ],
    )
    def test_lists_and_names_are_taken_as_well(self, weights: Any, factors: Any) -> None:
        mixing = make_mixing(Recording(weights, loss_weights=factors))
        assert list(mixing.weights.values()) == [0.125, 0.25, 0.625]
        assert mixing.decision.weights.tolist() == [1.0, 2.0, 5.0]
        found = mixing.next_plan().loss_weights
        assert found is None if factors is None else found.tolist() == [2.0, 1.0, 0.5]

    @pytest.mark.parametrize(
        ("policy", "option"),
        [
            (Recording([1.0, 1.0]), "Recording at step 0"),
            (Recording([0.0, 0.0, 0.0]), "Recording at step 0"),
            (Recording([1.0] * 3, loss_weights=[1.0, -1.0, 1.0]), "Recording at step 0"),
            (Recording([1.0] * 3, [1.0, math.nan, 1.0]), "Recording at step 1"),
            (Function(lambda step, weights: [1, math.nan, 1]), "mixing function at step 0"),
        ],
    )
    def test_one_that_does_not_fit_is_refused_with_its_step(self, policy: Policy, option: str) -> None:
        with refused(option):
            one_step(make_mixing(copy.deepcopy(policy)))


class TestWhoIsThere:
    """What a policy sees of it is for the step that it decides."""

    def test_streams_that_enter_leave_and_are_used_up(self) -> None:
        streams = [
            Stream("always", range(99)),
            Stream("early", range(99), leaves_at=0.3),
            Stream("late", range(99), enters_at=0.6),
            Stream("short", range(5), max_epochs=1),
        ]
        mixing = Mixing(Planner(streams, 0), policy := Recording([1.0] * 4), Clock(10, 100, Budget(samples=100)))
        counts = [one_step(mixing).counts for _ in range(10)]
        there = [seen.is_active.tolist() for seen in policy.observations]
        np.testing.assert_array_equal(np.array(there)[:-1], np.array(counts)[1:] > 0)
        assert there[:2] == [[True, True, False, True], [True, True, False, False]]
        assert there[2] == there[4] == [True, False, False, False]
        assert there[5] == there[-1] == [True, False, True, False]


def test_a_copy_of_a_mixture_goes_by_its_own_clock() -> None:
    mixing = make_mixing()
    copied = copy.deepcopy(mixing)
    one_step(copied)
    assert (mixing.clock.step, copied.clock.step) == (0, 1)
    assert copied._mixture.decay_begins.__self__ is copied
