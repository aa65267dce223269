"""What holds for every policy that replays."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.mixture.weights import MixtureWeights
from mixer.policies import (
    Decision,
    Fixed,
    Floor,
    LossChange,
    Mixture,
    Observation,
    PiKE,
    Policy,
    Scheduled,
    Smoothed,
    TrustRegion,
    Uniform,
)
from mixer.policies.shared.part import part_of_mixture
from replay.policies import ForgettingAware, ReplayPolicy, ReplayRatio, Spaced
from tests.replay.policies.updates import MEMORIES, MIXED, OTHERS, one_memory, random_step, shown

MAKERS: dict[str, Callable[..., ReplayPolicy]] = {
    "ReplayRatio": lambda policy=None, **options: ReplayRatio(0.3, policy, **options),
    "ReplayRatio, none": lambda policy=None, **options: ReplayRatio(0.0, policy, **options),
    "ReplayRatio, nearly all": lambda policy=None, **options: ReplayRatio(1 - 2**-52, policy, **options),
    "ReplayRatio, course": lambda policy=None, **options: ReplayRatio([(0.0, 0.0), (0.5, 0.6)], policy, **options),
    "ReplayRatio, tasks": lambda policy=None, **options: ReplayRatio("tasks", policy, **options),
    "ReplayRatio, samples": lambda policy=None, **options: ReplayRatio(
        "samples", policy, shares={"early": 3, "late": 1}, **options
    ),
    "ForgettingAware": lambda policy=None, **options: ForgettingAware(policy=policy, smoothing=0.5, **options),
    "Spaced": lambda policy=None, **options: Spaced(0.4, 3, 1.5, 2, policy, **options),
}
INNER: dict[str, Callable[[], Policy]] = {
    "LossChange": lambda: LossChange(num_warmup_observations=2),
    "LossChange, evaluation": lambda: LossChange(num_warmup_observations=1, loss="evaluation"),
    "PiKE": lambda: PiKE(2),
    "Smoothed(Floor(PiKE))": lambda: Smoothed(Floor(PiKE(1, "conceptual"), 0.1), 0.5),
    "Scheduled": lambda: Scheduled([(0.0, {"a": 1, "b": 0, "c": 1}), (1.0, {"a": 0, "b": 1, "c": 1})]),
}

every_policy = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
both_ways = pytest.mark.parametrize("additional", [False, True], ids=["part", "on top"])
awkward = st.one_of(st.floats(0, 10), st.sampled_from([np.nan, np.inf, 0.0, 1e300, -1e300, 1.7e308, 5e-324, -3.0]))


def follow(
    policy: Policy, decision: Decision, first_step: int = 1, num_steps: int = 20, seed: int = 0
) -> list[Decision]:
    random, decisions = np.random.default_rng(seed), [decision]
    for step in range(first_step, first_step + num_steps):
        decisions.append(policy.update(random_step(random, step, decisions[-1])))
    return decisions


def tables(decisions: list[Decision]) -> tuple[np.ndarray, np.ndarray]:
    more = [np.zeros(len(d.weights)) if d.additional is None else d.additional for d in decisions]
    return np.array([decision.weights for decision in decisions]), np.array(more)


class Spy(Policy):
    """Keeps what it sees."""

    def start(self, mixture: Mixture) -> Decision:
        self.mixture, self.seen = mixture, []
        return Decision(np.array([0.5, 0.3, 0.2]))

    def update(self, observation: Observation) -> Decision:
        self.seen.append(observation)
        return Decision(np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 0.5]))


@every_policy
@both_ways
class TestMix:
    @given(rows=st.lists(st.lists(awkward, min_size=5, max_size=5), min_size=1, max_size=8), empty=st.booleans())
    def test_is_one_whatever_is_observed(self, make, additional: bool, rows, empty: bool) -> None:
        policy = make(LossChange(num_warmup_observations=1), additional=additional)
        decisions = [policy.start(MIXED)]
        for step, row in enumerate(rows, start=1):
            weights = decisions[-1].weights
            shares = np.where(np.isin(range(5), MEMORIES), 0.0, weights) if empty else weights
            seen = [0 if empty and k in MEMORIES else step for k in range(5)]
            observation = shown(
                5, step, weights=weights, shares=shares / shares.sum(), seen=seen, losses=row, update_norm=row[0]
            )
            decisions.append(policy.update(observation))
        weights, more = tables(decisions)
        assert np.isfinite(weights).all()
        assert weights.min() >= 0.0
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)
        assert (weights[:, OTHERS].sum(axis=1) > 0).all()
        assert np.isfinite(more).all()
        assert more.min() >= 0.0
        if additional:
            assert not weights[:, MEMORIES].any()
            assert not more[:, OTHERS].any()
        else:
            assert not more.any()

    def test_state_saved_on_the_way_goes_on_alike(self, make, additional: bool) -> None:
        whole, resumed = (make(INNER["PiKE"](), additional=additional) for _ in range(2))
        last = follow(whole, whole.start(MIXED), num_steps=7)[-1]
        saved = json.dumps(whole.state_dict(), allow_nan=False)
        resumed.start(MIXED)
        resumed.load_state_dict(json.loads(saved))
        assert json.dumps(resumed.state_dict()) == saved
        for found, expected in zip(
            tables(follow(resumed, last, 8, seed=1)), tables(follow(whole, last, 8, seed=1)), strict=True
        ):
            np.testing.assert_array_equal(found, expected)

    def test_starting_again_forgets_the_earlier_run(self, make, additional: bool) -> None:
        policy = make(INNER["LossChange"](), additional=additional)
        first = tables(follow(policy, policy.start(MIXED)))
        again = tables(follow(policy, policy.start(MIXED)))
        np.testing.assert_array_equal(first, again)

    def test_arguments_are_left_as_they_are(self, make, additional: bool) -> None:
        policy = make(INNER["PiKE"](), additional=additional)
        decision = policy.start(MIXED)
        np.testing.assert_array_equal(MIXED.weights, [0.1, 0.2, 0.1, 0.2, 0.4])
        observation, same = (random_step(np.random.default_rng(0), 2, decision) for _ in range(2))
        policy.update(observation)
        for field in ("weights", "counts", "seen", "losses", "shares"):
            np.testing.assert_array_equal(getattr(observation, field), getattr(same, field))

    @pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
    def test_the_inner_policy_decides_as_it_would_alone(self, make, additional: bool, inner) -> None:
        policy, alone = make(inner(), additional=additional), inner()
        mixed, own = policy.start(MIXED), alone.start(part_of_mixture(MIXED, OTHERS))
        random = np.random.default_rng(3)
        for step in range(1, 21):
            whole = random_step(random, step, mixed)
            asked = 1.0 if additional else float(whole.shares[OTHERS].sum())
            seen = Observation(
                step=whole.step,
                progress=whole.progress,
                weights=own.weights / own.weights.sum(),
                counts=whole.counts[OTHERS],
                tokens=whole.tokens[OTHERS],
                seen=whole.seen[OTHERS],
                losses=whole.losses[OTHERS],
                evaluation_losses=None if whole.evaluation_losses is None else whole.evaluation_losses[OTHERS],
                gradients=whole.gradients.part(OTHERS),
                shares=own.weights / own.weights.sum(),
                batch_size=max(1, int(24 * asked + 1e-9)),
                update_norm=whole.update_norm,
            )
            mixed, own = policy.update(whole), alone.update(seen)
            among = mixed.weights[OTHERS] / mixed.weights[OTHERS].sum()
            np.testing.assert_allclose(among, own.weights / own.weights.sum(), rtol=1e-9)
            assert policy.policy.state_dict() == alone.state_dict()


@every_policy
class TestDescription:
    def test_it_is_that_of_the_inner_policy_and_its_own(self, make) -> None:
        policy, own = make(PiKE(7, min_samples=3, unit="tokens")), type(make()).needs
        assert (policy.unit, policy.interval_steps, policy.min_samples) == ("tokens", 7, 3)
        assert policy.needs == own | {"gradient_variance"}
        assert make().needs == own
        assert policy.name == f"{type(policy).__name__}(PiKE)"

    def test_the_inner_policy_may_be_a_name_or_weights(self, make) -> None:
        assert isinstance(make("loss_change").policy, LossChange)
        decision = make({"a": 1, "b": 2, "c": 1}).start(MIXED)
        np.testing.assert_allclose(decision.weights[OTHERS] / decision.weights[OTHERS].sum(), [0.25, 0.5, 0.25])
        with pytest.raises(ValueError, match="no policy is called 'unifrom'"):
            make("unifrom")

    def test_weights_of_the_inner_policy_name_only_the_others(self, make) -> None:
        with pytest.raises(ValueError, match=r"Fixed: weights must name each of the streams \['a', 'b', 'c'\]"):
            make({"a": 1, "b": 2, "c": 1, "early": 1}).start(MIXED)

    def test_without_one_the_streams_own_weights_hold(self, make) -> None:
        weights = make().start(MIXED).weights[OTHERS]
        np.testing.assert_allclose(weights / weights.sum(), [0.25, 0.25, 0.5])

    def test_and_where_they_have_none_their_sizes(self, make) -> None:
        policy = make()
        for has_weights, name in ((False, "Proportional"), (True, "Fixed")):
            weights = policy.start(replace(MIXED, has_weights=has_weights)).weights[OTHERS]
            expected = [0.25, 0.25, 0.5] if has_weights else [0.4, 0.1, 0.5]
            np.testing.assert_allclose(weights / weights.sum(), expected)
            assert policy.policy.name == name

    def test_the_state_of_something_else_is_refused(self, make) -> None:
        policy = make()
        policy.start(MIXED)
        with pytest.raises(ValueError, match="remembers"):
            policy.load_state_dict({"something else": 1})

    def test_a_mixture_without_memories_is_refused(self, make) -> None:
        with pytest.raises(ValueError, match=r"none of the streams \['a', 'b', 'c'\] is a ReplayBuffer"):
            make().start(part_of_mixture(MIXED, OTHERS))

    def test_a_mixture_of_memories_alone_is_refused(self, make) -> None:
        with pytest.raises(ValueError, match=r"all streams, \['early', 'late'\], are replay buffers"):
            make().start(part_of_mixture(MIXED, MEMORIES))

    def test_others_of_weight_0_are_refused(self, make) -> None:
        with pytest.raises(ValueError, match=r"the weights of \['a', 'b', 'c'\] are all 0"):
            make().start(replace(MIXED, weights=np.array([0.5, 0, 0.5, 0, 0])))


@both_ways
class TestInnerPolicy:
    def test_it_sees_its_streams_alone(self, additional: bool) -> None:
        spy = Spy()
        policy = ReplayRatio(0.2, spy, additional=additional)
        decision = policy.start(MIXED)
        assert spy.mixture.names == ("a", "b", "c")
        assert spy.mixture.memories == ()
        np.testing.assert_allclose(spy.mixture.weights, [0.25, 0.25, 0.5])
        policy.update(random_step(np.random.default_rng(0), 1, decision, batch_size=50))
        (seen,) = spy.seen
        np.testing.assert_allclose(seen.weights, [0.5, 0.3, 0.2])
        np.testing.assert_allclose(seen.shares, [0.5, 0.3, 0.2])
        assert seen.batch_size == (50 if additional else 40)
        assert seen.gradients.gram.shape == (3, 3)

    def test_factors_and_additional_samples_are_passed_on(self, additional: bool) -> None:
        policy = ReplayRatio(0.2, Spy(), additional=additional)
        decision = policy.update(random_step(np.random.default_rng(0), 1, policy.start(MIXED)))
        assert decision.loss_weights.tolist() == [1.0, 1.0, 1.0, 2.0, 3.0]
        # On top of what the inner policy takes for the batch, which is all of it or four fifths.
        expected = [0.125, 0, 0.125, 0, 0.5] if additional else [0, 0, 0, 0, 0.4]
        np.testing.assert_allclose(decision.additional, expected)


class TestWrappedItself:
    def test_smoothing_around_it_moves_slowly_to_the_ratio(self) -> None:
        policy = Smoothed(ReplayRatio([(0.0, 0.0), (0.1, 0.4)], Uniform()), 0.5)
        decisions = follow(policy, policy.start(MIXED))
        assert decisions[1].weights[MEMORIES].sum() < 0.2
        assert decisions[-1].weights[MEMORIES].sum() == pytest.approx(0.4, abs=1e-4)

    def test_additional_samples_pass_through_wrappers_of_weights(self) -> None:
        policy = Smoothed(ReplayRatio(0.5, additional=True), 0.5)
        decisions = follow(policy, policy.start(MIXED))
        assert all(decision.additional[MEMORIES].sum() == pytest.approx(1.0) for decision in decisions)
        assert not any(decision.weights[MEMORIES].any() for decision in decisions)

    @pytest.mark.parametrize("wrap", [Floor, Smoothed, TrustRegion], ids=lambda wrap: wrap.__name__)
    @pytest.mark.parametrize("name", ["ReplayRatio", "ReplayRatio, course", "Spaced"])
    def test_nothing_on_top_has_a_share_of_the_batch_too(self, wrap, name: str) -> None:
        weights = MixtureWeights(wrap(MAKERS[name](LossChange(num_warmup_observations=2), additional=True)), MIXED)
        random, num_on_top = np.random.default_rng(0), 0
        for step in range(1, 21):
            decision = Decision(weights.value, None, weights.additional)
            weights.update(random_step(random, step, decision), step)  # it checks
            assert weights.value.sum() == pytest.approx(1.0)
            num_on_top += bool(weights.additional.any())
        assert num_on_top


def test_one_stream_and_one_memory() -> None:
    assert ReplayRatio(0.25).start(one_memory(1)).weights.tolist() == [0.75, 0.25]
    decision = ReplayRatio(0.5, Fixed(), additional=True).start(one_memory(1))
    assert decision.weights.tolist() == [1.0, 0.0]
    assert decision.additional.tolist() == [0.0, 1.0]
