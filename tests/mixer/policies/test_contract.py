import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixer.policies import (
    ADO,
    DWA,
    FAMO,
    GRAPE,
    ODM,
    Aioli,
    BalancedPiKE,
    CoBa,
    Decision,
    DoGE,
    DoReMi,
    Fixed,
    Floor,
    Function,
    GradNorm,
    GroupDRO,
    Hold,
    LossChange,
    Mixture,
    ObjectiveDescent,
    Observation,
    PiKE,
    Policy,
    Proportional,
    RegularizedBalance,
    Scheduled,
    SkillIt,
    Smoothed,
    TargetLoss,
    Temperature,
    TrustRegion,
    Uniform,
    UniMax,
    WarmUp,
)
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.policies.registry import built_in_policies

NAMES = ("a", "b", "c", "d")
SIZES = np.array([10, 400, 3, 90])
OWN_WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])
BY_NAME = {"a": 3.0, "b": 1.0, "c": 0.0, "d": 2.0}
LOSSES_BY_NAME = {"a": 0.3, "b": 0.2, "c": -1.0, "d": 0.4}

MAKERS: dict[str, Callable[..., Policy]] = {
    "Uniform": Uniform,
    "Proportional": Proportional,
    "Temperature": Temperature,
    "Fixed": lambda **unit: Fixed(BY_NAME, **unit),
    "Fixed, own weights": Fixed,
    "Scheduled": lambda **unit: Scheduled([(0.2, BY_NAME), (0.9, {**BY_NAME, "c": 4.0})], **unit),
    "Scheduled, steps": lambda **unit: Scheduled([(0.0, BY_NAME), (0.5, {**BY_NAME, "a": 0.0})], "step", **unit),
    "LossChange": lambda **unit: LossChange(num_warmup_observations=2, **unit),
    "LossChange, evaluation": lambda **unit: LossChange(num_warmup_observations=1, loss="evaluation", **unit),
    "ODM": lambda **unit: ODM(num_warmup_steps=2, **unit),
    "ODM, code": lambda **unit: ODM("code", 0.5, 0, **unit),
    "ADO": lambda **unit: ADO("paper", 5, 3, 0, **unit),
    "ADO, code": lambda **unit: ADO("code", 4, 3, 0, 0.1, 0.5, 0.2, 8, **unit),
    "GroupDRO": lambda **unit: GroupDRO(0.3, **unit),
    "GroupDRO, sampling": lambda **unit: GroupDRO(2.0, 0.1, "sampling", **unit),
    "DoReMi": DoReMi,
    "DoReMi, recorded": lambda **unit: DoReMi(3.0, 0.0, LOSSES_BY_NAME, "sampling", **unit),
    "TargetLoss": lambda **unit: TargetLoss(LOSSES_BY_NAME, **unit),
    "TargetLoss, code": lambda **unit: TargetLoss(LOSSES_BY_NAME, 5.0, "code", 0.0, **unit),
    "PiKE": lambda **unit: PiKE(1, **unit),
    "PiKE, raw": lambda **unit: PiKE(2, noise_rate=0.0, scale_free=False, max_log_change=5.0, min_samples=0, **unit),
    "PiKE, conceptual": lambda **unit: PiKE(1, "conceptual", decay=0.5, **unit),
    "BalancedPiKE": lambda **unit: BalancedPiKE(interval_steps=1, **unit),
    "BalancedPiKE, conceptual": lambda **unit: BalancedPiKE(
        1.0, 0.5, True, interval_steps=2, mode="conceptual", bound="published", min_samples=1, **unit
    ),
    "UniMax": lambda **unit: UniMax(400, 3.0, **unit),
    "CoBa": lambda **unit: CoBa(num_warmup_evaluations=2, **unit),
    "CoBa, loss": lambda **unit: CoBa(3, 2, acts_on="loss", **unit),
    "DWA": lambda **unit: DWA(window_steps=2, **unit),
    "DWA, loss": lambda **unit: DWA(0.1, 2, "loss", **unit),
    "FAMO": FAMO,
    "FAMO, loss": lambda **unit: FAMO(0.3, acts_on="loss", **unit),
    "SkillIt": SkillIt,
    "SkillIt, graph": lambda **unit: SkillIt(np.full((4, 4), 0.5) + np.eye(4), 3.0, 1, **unit),
    "Aioli": lambda **unit: Aioli(1.0, 2, 1, 2, **unit),
    "Aioli, evaluation": lambda **unit: Aioli(1.0, 1, 1, 1, 1.0, loss="evaluation", **unit),
    "DoGE": lambda **unit: DoGE(interval_steps=1, **unit),
    "DoGE, targets": lambda **unit: DoGE({"a": 2.0}, 2, 1.0, scale_free=True, decay=0.5, **unit),
    "GRAPE": lambda **unit: GRAPE(interval_steps=1, **unit),
    "GRAPE, targets": lambda **unit: GRAPE(["a"], 2, 0.3, 0.1, scale_free=True, min_samples=0, **unit),
    "RegularizedBalance": lambda **unit: RegularizedBalance(interval_steps=1, **unit),
    "RegularizedBalance, targets": lambda **unit: RegularizedBalance(["a"], 2, 0.5, decay=0.0, **unit),
    "GradNorm": lambda **unit: GradNorm(interval_steps=1, **unit),
    "GradNorm, sampling": lambda **unit: GradNorm(0.5, "sampling", 2, 1.0, min_samples=0, **unit),
    "ObjectiveDescent": lambda **unit: ObjectiveDescent(interval_steps=1, evidence=0.5, **unit),
    "ObjectiveDescent, worst": lambda **unit: ObjectiveDescent(
        "worst", interval_steps=1, max_ratio=10.0, evidence=0.0, **unit
    ),
    "ObjectiveDescent, targets": lambda **unit: ObjectiveDescent(
        targets={"a": 1.0}, interval_steps=1, evidence=0.1, criterion="descent", min_samples=0, decay=0.3, **unit
    ),
    "Function": lambda **unit: Function(lambda step, weights: weights**1.1 + 0.01 / (1 + step), **unit),
}


def adaptive(**unit: str) -> Policy:
    return LossChange(num_warmup_observations=1, fast_decay=0.3, **unit)


MAKERS |= {
    "Floor": lambda **unit: Floor(adaptive(**unit), 0.1),
    "Smoothed": lambda **unit: Smoothed(adaptive(**unit), 0.7),
    "WarmUp": lambda **unit: WarmUp(adaptive(**unit), 3),
    "Hold": lambda **unit: Hold(MAKERS["FAMO, loss"](**unit), 3),
    "Hold(Floor(Smoothed(WarmUp)))": lambda **unit: Hold(Floor(Smoothed(WarmUp(adaptive(**unit), 2)), 0.2), 2),
    "TrustRegion": lambda **unit: TrustRegion(adaptive(**unit), 0.1),
    "TrustRegion, both": lambda **unit: TrustRegion(MAKERS["FAMO, loss"](**unit), 0.2, 0.02, 0.1),
}

awkward_losses = st.one_of(
    st.floats(0.0, 10.0),
    st.sampled_from([np.nan, np.inf, 0.0, 1e300, -1e300, 1.7e308, -3.0, 1e-300, 5e-324, 2.5]),
)
loss_rows = st.lists(awkward_losses, min_size=4, max_size=4)
# Each step shows losses, squared norms of gradients, their variances, and what their products come from.
loss_courses = st.lists(st.lists(loss_rows, min_size=4, max_size=4), min_size=1, max_size=8)
every_policy = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
COUNTS = np.array([3, 2, 1, 2])


def mixture(order: Sequence[int] = range(4), names: Sequence[str] = NAMES) -> Mixture:
    index = np.array(order)
    return Mixture(tuple(names[k] for k in order), SIZES[index], OWN_WEIGHTS[index])


def observation(step: int, row: Any, weights: np.ndarray, order: Sequence[int] = range(4)) -> Observation:
    """What a step shows: given losses, gradients that come from them, or all four kinds of numbers."""
    values = np.array(row, dtype=np.float64)
    losses = values if values.ndim == 1 else values[0]
    counts = COUNTS[np.array(order)]
    return Observation(
        step=step,
        progress=min(1.0, step / 12),
        weights=weights / weights.sum(),
        counts=counts,
        tokens=10 * counts,
        seen=step * counts,
        losses=losses,
        evaluation_losses=losses / 2 if step % 2 else None,
        excess_losses=np.maximum(losses - 0.4, 0.0) if step % 4 else None,
        gradients=gradients(values, counts) if step % 3 else None,
        losses_after=0.9 * losses - 0.05 if step % 4 else None,
    )


def gradients(values: np.ndarray, counts: np.ndarray) -> GradientStatistics:
    with np.errstate(over="ignore", invalid="ignore"):
        if values.ndim == 1:
            values = np.array([values, values**2 - 0.05, 3.0 + values, np.sqrt(np.abs(values)) - 0.4])
        gram = np.outer(values[3], values[3])
    return GradientStatistics(gram, values[2], values[1], counts, counts / counts.sum(), np.zeros((4, 4)))


def usual(num_steps: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.exp(-random.random(4) * np.arange(num_steps)[:, None] / 5) + 0.1 * random.random((num_steps, 4))


def follow(
    policy: Policy, course: Any, decision: Decision, first: int = 1, order: Sequence[int] = range(4)
) -> list[Decision]:
    decisions = []
    for step, losses in enumerate(course, start=first):
        decision = policy.update(observation(step, losses, decision.weights, order))
        decisions.append(decision)
    return decisions


def run(policy: Policy, course: Any, start: Mixture | None = None, order: Sequence[int] = range(4)) -> list[Decision]:
    first = policy.start(mixture() if start is None else start)
    return [first, *follow(policy, course, first, order=order)]


def plain(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    return [decision.state_dict() for decision in decisions]


def test_every_policy_stands_under_the_contract() -> None:
    assert set(built_in_policies()) <= {name.partition(",")[0] for name in MAKERS}


@every_policy
@settings(max_examples=12)
@given(course=loss_courses, cut=st.integers(0, 8))
def test_whatever_is_observed_weights_lie_on_the_simplex_and_a_saved_run_goes_on_alike(
    make: Callable[..., Policy], course: Any, cut: int
) -> None:
    cut, policy, resumed = min(cut, len(course)), make(), make()
    before = run(policy, course[:cut])
    saved = json.dumps(policy.state_dict(), allow_nan=False)
    resumed.start(mixture())
    resumed.load_state_dict(json.loads(saved))
    assert json.dumps(resumed.state_dict()) == saved
    later = [*course[cut:], *usual(6)]
    after = follow(policy, later, before[-1], cut + 1)
    assert plain(follow(resumed, later, before[-1], cut + 1)) == plain(after)
    weights = np.array([decision.weights for decision in [*before, *after]])
    assert weights.min() >= 0.0
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)


@every_policy
def test_two_runs_are_the_same_also_of_one_policy_started_again(make: Callable[..., Policy]) -> None:
    policy, expected = make(), plain(run(make(), usual(8)))
    run(policy, usual(5, seed=1))
    assert plain(run(policy, usual(8))) == expected


@every_policy
def test_what_was_given_decided_or_saved_does_not_change_later(make: Callable[..., Policy]) -> None:
    policy, start = make(), mixture()
    held: list[Any] = [start, policy.start(start)]
    copies = copy.deepcopy(held)
    for step, losses in enumerate(usual(8), start=1):
        seen = observation(step, [*losses[:2], np.nan, losses[3]] if step == 4 else losses, copies[-1].weights)
        held, copies = [*held, seen], [*copies, copy.deepcopy(seen)]
        made = [policy.state_dict(), policy.update(seen)]
        held, copies = [*held, *made], [*copies, *copy.deepcopy(made)]
    with np.printoptions(precision=17):
        for found, expected in zip(held, copies, strict=True):
            assert repr(found) == repr(expected)


@every_policy
def test_saving_changes_nothing(make: Callable[..., Policy]) -> None:
    policy, decisions = make(), []
    decisions.append(policy.start(mixture()))
    for step, losses in enumerate(usual(8), start=1):
        policy.state_dict()
        decisions += follow(policy, [losses], decisions[-1], step)
    assert plain(decisions) == plain(run(make(), usual(8)))


def needs_names(policy: Policy) -> bool:
    given = [getattr(policy, name, None) for name in ("weights", "targets", "reference_losses", "target_losses")]
    return isinstance(policy, Scheduled) or any(values is not None for values in given)


@every_policy
def test_streams_in_another_order_under_other_names_have_the_same_weights(make: Callable[..., Policy]) -> None:
    course, names = usual(8), NAMES if needs_names(make()) else ("w", "x", "y", "z")
    course[3, 1] = np.nan
    expected = np.array([decision.weights for decision in run(make(), course)])
    for order in ([2, 0, 3, 1], [3, 1, 0, 2]):
        found = run(make(), course[:, order], mixture(order, names), order)
        np.testing.assert_allclose([decision.weights for decision in found], expected[:, order], rtol=1e-9)


@every_policy
def test_what_is_not_needed_is_not_looked_at(make: Callable[..., Policy]) -> None:
    policy, blind, nothing = make(), make(), np.full(4, np.nan)
    first, other = policy.start(mixture()), blind.start(mixture())
    for step, losses in enumerate(usual(8), start=1):
        seen = observation(step, losses, first.weights)
        hidden: dict[str, Any] = {
            "loss": {"losses": nothing},
            "evaluation_loss": {"evaluation_losses": None},
            "excess_loss": {"excess_losses": None},
            "loss_after": {"losses_after": None},
            "gradient_variance": {"gradients": None},
        }
        if "gradient" in blind.needs and seen.gradients is not None:
            hidden["gradient_variance"] = {
                "gradients": replace(seen.gradients, variance=nothing, squared_norm=nothing)
            }
        changes = {key: value for need in hidden.keys() - blind.needs for key, value in hidden[need].items()}
        first, other = policy.update(seen), blind.update(replace(seen, **changes))
        assert plain([first]) == plain([other])


@every_policy
def test_the_unit_is_kept_and_the_state_of_something_else_refused(make: Callable[..., Policy]) -> None:
    assert (make().unit, make(unit="tokens").unit) == ("samples", "tokens")
    with pytest.raises(ValueError, match="unit must be 'samples' or 'tokens', got 'bytes'"):
        make(unit="bytes")
    policy = make()
    policy.start(mixture())
    with pytest.raises(ValueError, match="state"):
        policy.load_state_dict({"something else": 1})


class Needy(Uniform):
    needs = frozenset({"loss", "evaluation_loss"})


@pytest.mark.parametrize("wrap", [Floor, Smoothed, WarmUp, Hold, TrustRegion])
def test_wrappers_wrap_policies_alone_with_their_needs_and_let_them_see_every_step(wrap: Any) -> None:
    assert wrap(Uniform()).needs == frozenset()
    assert wrap(wrap(LossChange(loss="evaluation"))).needs == {"evaluation_loss"}
    assert wrap(Needy()).needs == {"loss", "evaluation_loss"}
    with pytest.raises(TypeError, match="policy must be a Policy to wrap, got str"):
        wrap("uniform")
    inner, alone = LossChange(), LossChange()
    run(wrap(inner), usual(9))
    run(alone, usual(9))
    assert inner.state_dict() == alone.state_dict()
