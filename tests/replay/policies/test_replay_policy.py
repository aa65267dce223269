import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.measurements import EvaluationLoss, Gradients, Loss
from mixer.policies import Decision, Floor, LossChange, Mixture, Observation, PiKE, Policy, Scheduled, Smoothed
from mixer.policies.shared.part import part_of_mixture
from replay.policies import ReplayBound, ReplayPolicy, ReplayRatio
from tests.replay.policies.updates import MEMORIES, MIXED, OTHERS, random_step, shown

Maker = Callable[..., ReplayPolicy]
MAKERS: dict[str, Maker] = {
    "ReplayRatio": lambda policy=None, **options: ReplayRatio(0.3, policy, **options),
    "nearly all": lambda policy=None, **options: ReplayRatio(1 - 2**-52, policy, **options),
    "course": lambda policy=None, **options: ReplayRatio([(0.0, 0.0), (0.5, 0.6)], policy, **options),
    "samples": lambda policy=None, **options: ReplayRatio("samples", policy, shares={"early": 3, "late": 1}, **options),
    "ReplayBound": lambda policy=None, **options: ReplayBound(0.1, policy=policy, **options),
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


def follow(policy: Policy, decision: Decision, first_step: int = 1, seed: int = 0) -> list[Decision]:
    random, decisions = np.random.default_rng(seed), [decision]
    for step in range(first_step, first_step + 15):
        decisions.append(policy.update(random_step(random, step, decisions[-1])))
    return decisions


def tables(decisions: list[Decision]) -> tuple[np.ndarray, np.ndarray]:
    more = [np.zeros(len(d.weights)) if d.additional is None else d.additional for d in decisions]
    return np.array([decision.weights for decision in decisions]), np.array(more)


@every_policy
@both_ways
@settings(max_examples=30)
@given(rows=st.lists(st.lists(awkward, min_size=5, max_size=5), min_size=1, max_size=8), empty=st.booleans())
def test_the_mix_is_one_whatever_is_observed(make: Maker, additional: bool, rows: list[Any], empty: bool) -> None:
    policy = make(LossChange(num_warmup_observations=1), additional=additional)
    decisions = [policy.start(MIXED)]
    for step, row in enumerate(rows, start=1):
        weights = decisions[-1].weights
        shares = np.where(np.isin(range(5), MEMORIES), 0.0, weights) if empty else weights
        seen = [0 if empty and k in MEMORIES else step for k in range(5)]
        fields = {"weights": weights, "shares": shares / shares.sum(), "seen": seen}
        decisions.append(policy.update(shown(5, step, **fields, losses=row, evaluation_losses=np.array(row))))
    weights, more = tables(decisions)
    assert np.isfinite([weights, more]).all()
    assert min(weights.min(), more.min()) >= 0.0
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)
    assert (weights[:, OTHERS].sum(axis=1) > 0).all()
    if additional:
        assert not weights[:, MEMORIES].any()
        assert not more[:, OTHERS].any()
    else:
        assert not more.any()


@every_policy
@both_ways
def test_a_saved_state_goes_on_and_another_start_forgets(make: Maker, additional: bool) -> None:
    whole, resumed = (make(INNER["PiKE"](), additional=additional) for _ in range(2))
    first = follow(whole, whole.start(MIXED))
    saved = json.dumps(whole.state_dict(), allow_nan=False)
    resumed.start(MIXED)
    resumed.load_state_dict(json.loads(saved))
    assert json.dumps(resumed.state_dict()) == saved
    ends = [tables(follow(policy, first[-1], 16, seed=1)) for policy in (resumed, whole)]
    np.testing.assert_array_equal(*ends)
    np.testing.assert_array_equal(tables(follow(whole, whole.start(MIXED))), tables(first))
    np.testing.assert_array_equal(MIXED.weights, [0.1, 0.2, 0.1, 0.2, 0.4])


@pytest.mark.parametrize(("make", "inner"), [*((make, "PiKE") for make in MAKERS), *(("samples", i) for i in INNER)])
@both_ways
def test_the_inner_policy_decides_as_it_would_alone(make: str, inner: str, additional: bool) -> None:
    policy, alone = MAKERS[make](INNER[inner](), additional=additional), INNER[inner]()
    mixed, own = policy.start(MIXED), alone.start(part_of_mixture(MIXED, OTHERS))
    random = np.random.default_rng(3)
    for step in range(1, 21):
        whole = random_step(random, step, mixed)
        asked = 1.0 if additional else float(whole.shares[OTHERS].sum())
        parts = {name: getattr(whole, name)[OTHERS] for name in ("counts", "tokens", "seen")}
        measured = {**whole.measured, Loss: whole[Loss][OTHERS], Gradients: whole[Gradients].part(OTHERS)}
        if EvaluationLoss in measured:
            measured[EvaluationLoss] = measured[EvaluationLoss][OTHERS]
        seen = replace(
            whole,
            **parts,
            weights=own.weights / own.weights.sum(),
            measured=measured,
            shares=own.weights / own.weights.sum(),
            batch_size=max(1, int(24 * asked + 1e-9)),
        )
        mixed, own = policy.update(whole), alone.update(seen)
        among = mixed.weights[OTHERS] / mixed.weights[OTHERS].sum()
        np.testing.assert_allclose(among, own.weights / own.weights.sum(), rtol=1e-9)
        assert policy.policy.state_dict() == alone.state_dict()


def test_without_an_inner_policy_weights_or_sizes_rule() -> None:
    for make in MAKERS.values():
        for has_weights, expected in ((True, [0.25, 0.25, 0.5]), (False, [0.4, 0.1, 0.5])):
            weights = make().start(replace(MIXED, has_weights=has_weights)).weights[OTHERS]
            np.testing.assert_allclose(weights / weights.sum(), expected)


@pytest.mark.parametrize(
    ("policy", "mixture", "message"),
    [
        ({"a": 1, "b": 2, "c": 1, "early": 1}, MIXED, r"\['a', 'b', 'c'"),
        (None, part_of_mixture(MIXED, OTHERS), r"\['a', 'b', 'c'\]"),
        (None, part_of_mixture(MIXED, MEMORIES), r"\['early', 'late'\]"),
        (None, replace(MIXED, weights=np.array([0.5, 0, 0.5, 0, 0])), r"\['a', 'b', 'c'\]"),
    ],
)
def test_what_cannot_be_started_is_refused(policy: Any, mixture: Mixture, message: str) -> None:
    for make in MAKERS.values():
        with pytest.raises(ValueError, match=message):
            make(policy).start(mixture)


class Adding(Policy):
    def start(self, mixture: Mixture) -> Decision:
        assert (mixture.names, mixture.memories) == (("a", "b", "c"), ())
        np.testing.assert_allclose(mixture.weights, [0.25, 0.25, 0.5])
        return Decision(np.array([0.5, 0.3, 0.2]))

    def update(self, observation: Observation) -> Decision:
        return Decision(np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 0.5]))


@both_ways
def test_what_the_inner_policy_adds_is_passed_on(additional: bool) -> None:
    policy = ReplayRatio(0.2, Adding(), additional=additional)
    decision = policy.update(random_step(np.random.default_rng(0), 1, policy.start(MIXED), batch_size=50))
    assert decision.loss_weights.tolist() == [1.0, 1.0, 1.0, 2.0, 3.0]
    # On top of what the inner policy takes for the batch, which is all of it or four fifths.
    np.testing.assert_allclose(decision.additional, [0.125, 0, 0.125, 0, 0.5] if additional else [0, 0, 0, 0, 0.4])
