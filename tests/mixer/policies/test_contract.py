import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.measurements import Gradients, TargetStatistics, asked
from mixer.policies import (
    Decision,
    Floor,
    Hold,
    Mixture,
    Observation,
    OverfitGuard,
    Policy,
    Safeguard,
    Smoothed,
    TrustRegion,
    WarmUp,
    Wrapper,
)
from mixer.policies.loss_change import LossChange
from mixer.policies.registry import built_in_policies
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from tests.helpers import layouts
from tests.mixer.policies.observed import measured, observe
from tests.refusals import refused

NAMES = ("a", "b", "c", "d")
SIZES = np.array([10, 400, 3, 90])
OWN_WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])
BY_NAME = {"a": 3.0, "b": 1.0, "c": 0.0, "d": 2.0}
LOSSES = {"a": 0.3, "b": 0.2, "c": -1.0, "d": 0.4}
TOLD: dict[str, Any] = {"mode": "conceptual", "bound": "published", "min_samples": 1}

# Arguments with which so few steps change something, and all that a policy has is used.
GIVEN: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Fixed": ((BY_NAME,), {}),
    "Fixed, own weights": ((), {}),
    "Scheduled": (([(0.2, BY_NAME), (0.9, {**BY_NAME, "c": 4.0})],), {}),
    "Scheduled, steps": (([(0.0, BY_NAME), (0.5, {**BY_NAME, "a": 0.0})], "step"), {}),
    "LossChange": ((), {"num_warmup_observations": 2}),
    "LossChange, evaluation": ((), {"num_warmup_observations": 1, "loss": "evaluation"}),
    "ODM": ((), {"num_warmup_steps": 2}),
    "ODM, code": (("code", 0.5, 0), {}),
    "ADO": (("paper", 5, 3, 0), {}),
    "ADO, code": (("code", 4, 3, 0, 0.1, 0.5, 0.2, 8), {}),
    "GroupDRO": ((0.3,), {}),
    "GroupDRO, sampling": ((2.0, 0.1, "sampling"), {}),
    "TargetLoss": ((LOSSES,), {}),
    "TargetLoss, code": ((LOSSES, 5.0, "code", 0.0), {}),
    "PiKE": ((1,), {}),
    "PiKE, raw": ((2,), {"noise_rate": 0.0, "scale_free": False, "max_log_change": 5.0, "min_samples": 0}),
    "PiKE, conceptual": ((1, "conceptual"), {"decay": 0.5}),
    "BalancedPiKE": ((), {"interval_steps": 1}),
    "BalancedPiKE, conceptual": ((1.0, 0.5, True), {"interval_steps": 2, **TOLD}),
    "UniMax": ((400, 3.0), {}),
    "CoBa": ((), {"num_warmup_evaluations": 2}),
    "CoBa, loss": ((3, 2), {"acts_on": "loss"}),
    "DWA": ((), {"window_steps": 2}),
    "DWA, loss": ((0.1, 2, "loss"), {}),
    "SkillIt, graph": ((np.full((4, 4), 0.5) + np.eye(4), 3.0, 1), {}),
    "DoGE": ((), {"interval_steps": 1}),
    "DoGE, targets": (({"a": 2.0}, 2, 1.0), {"scale_free": True, "decay": 0.5}),
    "DoGE, objective": (("objective", 1, 1.0), {}),
    "GRAPE": ((), {"interval_steps": 1}),
    "GRAPE, objective": (("objective", 1, 0.3, 0.1), {"scale_free": True}),
    "GRAPE, targets": ((["a"], 2, 0.3, 0.1), {"scale_free": True, "min_samples": 0}),
    "RegularizedBalance": ((), {"interval_steps": 1}),
    "RegularizedBalance, targets": ((["a"], 2, 0.5), {"decay": 0.0}),
    "GradNorm": ((), {"interval_steps": 1}),
    "GradNorm, sampling": ((0.5, "sampling", 2, 1.0), {"min_samples": 0}),
    "MarginalValue, fast": ((20.0, 1.0), {"drift": 0.0, "tau": 10.0}),
    "DGA, raw": ((0.1, 1.0, False), {}),
    "Function": ((lambda step, weights: weights**1.1 + 0.01 / (1 + step),), {}),
}
MAKERS: dict[str, Callable[..., Policy]] = {
    name: partial(built_in_policies()[name.partition(",")[0]], *arguments, **options)
    for name, (arguments, options) in GIVEN.items()
}


def adaptive(**unit: Any) -> Policy:
    return LossChange(num_warmup_observations=1, fast_decay=0.3, **unit)


MAKERS |= {
    "Floor": lambda **unit: Floor(adaptive(**unit), 0.1),
    "Smoothed": lambda **unit: Smoothed(adaptive(**unit), 0.7),
    "WarmUp": lambda **unit: WarmUp(adaptive(**unit), 3),
    "Hold": lambda **unit: Hold(MAKERS["DWA, loss"](**unit), 3),
    "Hold(Floor(Smoothed(WarmUp)))": lambda **unit: Hold(Floor(Smoothed(WarmUp(adaptive(**unit), 2)), 0.2), 2),
    "TrustRegion": lambda **unit: TrustRegion(adaptive(**unit), 0.1),
    "Safeguard": lambda **unit: Safeguard(adaptive(**unit), 0.5, 0.5, 3),
    "OverfitGuard": lambda **unit: OverfitGuard(adaptive(**unit), "reduce", 1, 0.0),
    "OverfitGuard, leave": lambda **unit: OverfitGuard(adaptive(**unit), "leave", 1, 0.1, 0.1, 0.5),
    "TrustRegion, both": lambda **unit: TrustRegion(MAKERS["DWA, loss"](**unit), 0.2, 0.02, 0.1),
}


def by_default(kind: Any) -> Callable[..., Policy]:
    return (lambda **unit: kind(adaptive(**unit))) if issubclass(kind, Wrapper) else kind  # type: ignore[no-any-return]


MAKERS |= {name: by_default(kind) for name, kind in built_in_policies().items() if name not in MAKERS}

awkward = st.sampled_from([np.nan, np.inf, 0.0, 1e300, -1e300, 1.7e308, -3.0, 1e-300, 5e-324, 2.5])
loss_rows = st.lists(st.floats(0.0, 10.0) | awkward, min_size=4, max_size=4)
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
    with np.errstate(over="ignore", invalid="ignore"):
        if values.ndim == 1:
            values = np.array([values, values**2 - 0.05, 3.0 + values, np.sqrt(np.abs(values)) - 0.4])
        gram, losses, counts = np.outer(values[3], values[3]), values[0], COUNTS[np.array(order)]
    shown: dict[str, Any] = {"step": step, "progress": min(1.0, step / 12), "weights": weights / weights.sum()}
    shown |= {"losses": losses, "evaluation_losses": losses / 2 if step % 2 else None}
    if step % 5 < 3:
        shown["targets"] = TargetStatistics(losses, gram, np.abs(gram) / 3.0)
    return measured(values[1], values[2], counts, gram, **shown) if step % 3 else observe(counts=counts, **shown)


def usual(num_steps: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.exp(-random.random(4) * np.arange(num_steps)[:, None] / 5) + 0.1 * random.random((num_steps, 4))


def follow(policy: Policy, course: Any, last: Decision, first: int = 1, order: Any = range(4)) -> list[Decision]:
    steps = enumerate(course, start=first)
    return [last := policy.update(observation(step, losses, last.weights, order)) for step, losses in steps]


def run(policy: Policy, course: Any, start: Mixture | None = None, order: Sequence[int] = range(4)) -> list[Decision]:
    first = policy.start(mixture() if start is None else start)
    return [first, *follow(policy, course, first, order=order)]


def plain(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    return [decision.state_dict() for decision in decisions]


@every_policy
@settings(max_examples=5)
@given(course=loss_courses, cut=st.integers(0, 8))
def test_whatever_is_observed_weights_lie_on_the_simplex_and_a_saved_run_goes_on_alike(make, course, cut) -> None:
    cut, policy, resumed = min(cut, len(course)), make(), make()
    before = run(policy, course[:cut])
    saved = json.dumps(policy.state_dict(), allow_nan=False)
    resumed.start(mixture())
    resumed.load_state_dict(json.loads(saved))
    assert json.dumps(resumed.state_dict()) == saved
    assert layouts(resumed) == layouts(policy)
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
    course = usual(8)
    course[3, 2] = np.nan
    for step, losses in enumerate(course, start=1):
        seen = observation(step, losses, copies[-1].weights)
        held, copies = [*held, seen], [*copies, copy.deepcopy(seen)]
        made = [policy.state_dict(), policy.update(seen)]
        held, copies = [*held, *made], [*copies, *copy.deepcopy(made)]
    with np.printoptions(precision=17):
        for found, expected in zip(held, copies, strict=True):
            assert repr(found) == repr(expected)
    decisions = [made for made in held if isinstance(made, Decision)]  # saving changed nothing either
    assert plain(decisions) == plain(run(make(), course))


@every_policy
def test_streams_in_another_order_under_other_names_have_the_same_weights(make: Callable[..., Policy]) -> None:
    policy, by_name = make(), ("points", "weights", "targets", "reference_losses", "target_losses")
    names = ("w", "x", "y", "z") if all(getattr(policy, name, None) is None for name in by_name) else NAMES
    course = usual(8)
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
        asked_for = {type(need) for need in blind.needs}
        shown = {kind: found for kind, found in seen.measured.items() if kind in asked_for}
        if Gradients in shown and not any(need.variance for need in asked(blind.needs, Gradients)):
            shown[Gradients] = replace(shown[Gradients], variance=nothing, squared_norm=nothing)
        changes: dict[str, Any] = {"measured": shown}
        first, other = policy.update(seen), blind.update(replace(seen, **changes))
        assert plain([first]) == plain([other])


@every_policy
def test_the_unit_is_kept_and_the_state_of_something_else_refused(make: Callable[..., Policy]) -> None:
    assert (make().unit, make(unit="tokens").unit) == ("samples", "tokens")
    with refused("unit"):
        make(unit="bytes")
    policy = make()
    policy.start(mixture())
    with pytest.raises(InvalidValueError):
        policy.load_state_dict({"something else": 1})


@pytest.mark.parametrize("wrap", [Floor, Smoothed, WarmUp, Hold, TrustRegion])
def test_wrappers_wrap_policies_alone_with_their_needs_and_let_them_see_every_step(wrap: Any) -> None:
    for name in ("Uniform", "LossChange", "BalancedPiKE"):
        assert wrap(wrap(MAKERS[name]())).needs == MAKERS[name]().needs
    with refused("policy", kind=InvalidTypeError):
        wrap("uniform")
    inner, alone = LossChange(), LossChange()
    run(wrap(inner), usual(9))
    run(alone, usual(9))
    assert inner.state_dict() == alone.state_dict()
