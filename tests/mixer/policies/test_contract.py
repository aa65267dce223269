import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

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
    "Temperature, low": lambda **unit: Temperature(0.05, **unit),
    "Fixed": lambda **unit: Fixed(BY_NAME, **unit),
    "Fixed, own weights": Fixed,
    "Scheduled": lambda **unit: Scheduled([(0.2, BY_NAME), (0.9, {**BY_NAME, "c": 4.0})], **unit),
    "Scheduled, steps": lambda **unit: Scheduled([(0.0, BY_NAME), (0.5, {**BY_NAME, "a": 0.0})], "step", **unit),
    "LossChange": lambda **unit: LossChange(num_warmup_observations=2, **unit),
    "LossChange, cold": lambda **unit: LossChange(0.01, 0.5, 0.9, 0.0, 1, **unit),
    "LossChange, evaluation": lambda **unit: LossChange(num_warmup_observations=1, loss="evaluation", **unit),
    "ODM": lambda **unit: ODM(num_warmup_steps=2, **unit),
    "ODM, code": lambda **unit: ODM("code", 0.5, 0, **unit),
    "ADO": lambda **unit: ADO("paper", 5, 3, 0, **unit),
    "ADO, code": lambda **unit: ADO("code", 4, 3, 0, 0.1, 0.5, 0.2, 8, **unit),
    "GroupDRO": lambda **unit: GroupDRO(0.3, **unit),
    "GroupDRO, sampling": lambda **unit: GroupDRO(2.0, 0.1, "sampling", **unit),
    "DoReMi": DoReMi,
    "DoReMi, sampling": lambda **unit: DoReMi(0.1, 0.01, acts_on="sampling", **unit),
    "DoReMi, recorded": lambda **unit: DoReMi(3.0, 0.0, LOSSES_BY_NAME, "sampling", **unit),
    "TargetLoss": lambda **unit: TargetLoss(LOSSES_BY_NAME, **unit),
    "TargetLoss, code": lambda **unit: TargetLoss(LOSSES_BY_NAME, 5.0, "code", 0.0, **unit),
    "PiKE": lambda **unit: PiKE(1, **unit),
    "PiKE, raw": lambda **unit: PiKE(2, noise_rate=0.0, scale_free=False, max_log_change=5.0, min_samples=0, **unit),
    "PiKE, conceptual": lambda **unit: PiKE(1, "conceptual", decay=0.5, **unit),
    "PiKE, conceptual, given": lambda **unit: PiKE(
        2, "conceptual", step_sharpness=30.0, conflict=0.1, alignment=0.3, min_samples=0, **unit
    ),
    "BalancedPiKE": lambda **unit: BalancedPiKE(interval_steps=1, **unit),
    "BalancedPiKE, raw": lambda **unit: BalancedPiKE(5.0, 0.0, interval_steps=1, scale_free=False, **unit),
    "BalancedPiKE, conceptual": lambda **unit: BalancedPiKE(
        1.0, 0.5, True, interval_steps=2, mode="conceptual", bound="published", min_samples=1, **unit
    ),
    "UniMax": lambda **unit: UniMax(400, 3.0, **unit),
    "UniMax, all capped": lambda **unit: UniMax(503, **unit),
    "CoBa": lambda **unit: CoBa(num_warmup_evaluations=2, **unit),
    "CoBa, short": lambda **unit: CoBa(2, 2, 0.5, 0.5, True, **unit),
    "CoBa, loss": lambda **unit: CoBa(3, 2, acts_on="loss", **unit),
    "DWA": lambda **unit: DWA(window_steps=2, **unit),
    "DWA, cold": lambda **unit: DWA(0.01, 1, **unit),
    "DWA, loss": lambda **unit: DWA(0.1, 2, "loss", **unit),
    "FAMO": FAMO,
    "FAMO, fast": lambda **unit: FAMO(5.0, 0.5, 0.2, 0.0, **unit),
    "FAMO, loss": lambda **unit: FAMO(0.3, acts_on="loss", **unit),
    "SkillIt": SkillIt,
    "SkillIt, graph": lambda **unit: SkillIt(np.full((4, 4), 0.5) + np.eye(4), 3.0, 1, **unit),
    "Aioli": lambda **unit: Aioli(1.0, 2, 1, 2, **unit),
    "Aioli, sweeps": lambda **unit: Aioli(5.0, 2, 2, 1, 0.6, False, 1, **unit),
    "Aioli, evaluation": lambda **unit: Aioli(1.0, 1, 1, 1, 1.0, loss="evaluation", **unit),
    "DoGE": lambda **unit: DoGE(interval_steps=1, **unit),
    "DoGE, targets": lambda **unit: DoGE({"a": 2.0}, 2, 1.0, scale_free=True, decay=0.5, **unit),
    "GRAPE": lambda **unit: GRAPE(interval_steps=1, **unit),
    "GRAPE, targets": lambda **unit: GRAPE(["a"], 2, 0.3, 0.1, scale_free=True, min_samples=0, **unit),
    "GRAPE, scale-free": lambda **unit: GRAPE(None, 1, 0.3, 0.1, True, **unit),
    "RegularizedBalance": lambda **unit: RegularizedBalance(interval_steps=1, **unit),
    "RegularizedBalance, targets": lambda **unit: RegularizedBalance(["a"], 2, 0.5, decay=0.0, **unit),
    "GradNorm": lambda **unit: GradNorm(interval_steps=1, **unit),
    "GradNorm, sampling": lambda **unit: GradNorm(0.5, "sampling", 2, 1.0, min_samples=0, **unit),
    "ObjectiveDescent": lambda **unit: ObjectiveDescent(interval_steps=1, evidence=0.5, **unit),
    "ObjectiveDescent, believing": lambda **unit: ObjectiveDescent(interval_steps=2, evidence=0.0, **unit),
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
    "Hold": lambda **unit: Hold(adaptive(**unit), 3),
    "Hold(Floor(Smoothed(WarmUp)))": lambda **unit: Hold(Floor(Smoothed(WarmUp(adaptive(**unit), 2)), 0.2), 2),
    "Smoothed(Hold)": lambda **unit: Smoothed(Hold(adaptive(**unit), 4)),
    "TrustRegion": lambda **unit: TrustRegion(adaptive(**unit), 0.1),
    "TrustRegion, divergence": lambda **unit: TrustRegion(MAKERS["DWA, cold"](**unit), None, 0.01),
    "TrustRegion, both": lambda **unit: TrustRegion(MAKERS["FAMO, loss"](**unit), 0.2, 0.02, 0.1),
    "TrustRegion(Hold)": lambda **unit: TrustRegion(Hold(adaptive(**unit), 2)),
    "Hold(PiKE)": lambda **unit: Hold(PiKE(2, **unit), 4),
    "Floor(Scheduled)": lambda **unit: Floor(MAKERS["Scheduled"](**unit)),
}

awkward_losses = st.one_of(
    st.floats(0.0, 10.0),
    st.sampled_from([np.nan, np.inf, 0.0, 1e300, -1e300, 1.7e308, -3.0, 1e-300, 5e-324, 2.5]),
)
loss_rows = st.lists(awkward_losses, min_size=4, max_size=4)
# Each step shows losses, squared norms of gradients, their variances, and what their products come from.
loss_courses = st.lists(st.lists(loss_rows, min_size=4, max_size=4), min_size=1, max_size=8)

every_policy = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def mixture(order: Sequence[int] = range(4), names: Sequence[str] = NAMES) -> Mixture:
    index = np.array(order)
    return Mixture(tuple(names[k] for k in order), SIZES[index], OWN_WEIGHTS[index])


COUNTS = np.array([3, 2, 1, 2])


def observation(
    step: int,
    row: Sequence[float] | Sequence[Sequence[float]],
    weights: np.ndarray,
    num_steps: int = 12,
    order: Sequence[int] = range(4),
) -> Observation:
    """What a step shows: given losses, gradients that come from them, or all four kinds of numbers."""
    values = np.array(row, dtype=np.float64)
    losses = values if values.ndim == 1 else values[0]
    counts = COUNTS[np.array(order)]
    return Observation(
        step=step,
        progress=min(1.0, step / num_steps),
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


def finite_course(num_steps: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.exp(-random.random(4) * np.arange(num_steps)[:, None] / 5) + 0.1 * random.random((num_steps, 4))


def follow(
    policy: Policy,
    course: Sequence[Sequence[float]],
    decision: Decision,
    first_step: int = 1,
    order: Sequence[int] = range(4),
) -> list[Decision]:
    decisions = []
    for step, losses in enumerate(course, start=first_step):
        decision = policy.update(observation(step, losses, decision.weights, order=order))
        decisions.append(decision)
    return decisions


def run(
    policy: Policy, course: Sequence[Sequence[float]], start: Mixture | None = None, order: Sequence[int] = range(4)
) -> list[Decision]:
    first = policy.start(mixture() if start is None else start)
    return [first, *follow(policy, course, first, order=order)]


def table(decisions: Sequence[Decision]) -> np.ndarray:
    return np.array([decision.weights for decision in decisions])


def test_every_policy_stands_under_the_contract() -> None:
    assert set(built_in_policies()) <= {name.partition(",")[0] for name in MAKERS}


@every_policy
class TestWeights:
    @settings(max_examples=20)  # of each of 71 policies
    @given(course=loss_courses)
    def test_they_lie_on_the_simplex_whatever_is_observed(self, make: Callable[..., Policy], course) -> None:
        weights = table(run(make(), course))
        assert weights.shape == (len(course) + 1, 4)
        assert np.isfinite(weights).all()
        assert weights.min() >= 0.0
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)

    def test_the_arguments_are_left_as_they_are(self, make: Callable[..., Policy]) -> None:
        policy, start = make(), mixture()
        own = start.weights.copy()
        decision = policy.start(start)
        seen = observation(1, [1.0, 2.0, np.nan, 4.0], np.array([0.4, 0.3, 0.2, 0.1]))
        again = observation(1, [1.0, 2.0, np.nan, 4.0], np.array([0.4, 0.3, 0.2, 0.1]))
        before = replace(seen, weights=seen.weights.copy(), losses=seen.losses.copy(), seen=seen.seen.copy())
        policy.update(seen)
        np.testing.assert_array_equal(start.weights, own)
        np.testing.assert_array_equal(seen.weights, before.weights)
        np.testing.assert_array_equal(seen.losses, before.losses)
        np.testing.assert_array_equal(seen.seen, before.seen)
        for found, drawn in zip(astuple(seen.gradients), astuple(again.gradients), strict=True):
            np.testing.assert_array_equal(found, drawn)
        assert decision.weights.sum() == pytest.approx(1.0)

    def test_earlier_decisions_do_not_change_later(self, make: Callable[..., Policy]) -> None:
        policy = make()
        decision, kept = policy.start(mixture()), []
        for step, losses in enumerate(finite_course(8), start=1):
            kept.append((decision, decision.weights.copy()))
            decision = policy.update(observation(step, losses, decision.weights))
        for earlier, weights in kept:
            np.testing.assert_array_equal(earlier.weights, weights)


@every_policy
class TestEquivariance:
    @given(order=st.permutations(range(4)))
    def test_streams_in_another_order_have_the_same_weights(self, make: Callable[..., Policy], order) -> None:
        course = finite_course(8)
        course[3, 1] = np.nan
        expected = table(run(make(), course))[:, order]
        reordered = table(run(make(), course[:, order], mixture(order), order))
        np.testing.assert_allclose(reordered, expected, rtol=1e-9)

    def test_names_say_nothing(self, make: Callable[..., Policy]) -> None:
        names = ("d", "c", "b", "a") if not needs_names(make()) else NAMES
        renamed = table(run(make(), finite_course(8), mixture(names=names)))
        np.testing.assert_array_equal(renamed, table(run(make(), finite_course(8))))


def without_variance(seen: Observation) -> GradientStatistics | None:
    """What a probe gives that was not asked for the variance."""
    nothing = np.full(4, np.nan)
    return None if seen.gradients is None else replace(seen.gradients, variance=nothing, squared_norm=nothing)


def needs_names(policy: Policy) -> bool:
    inner = getattr(policy, "policy", policy)
    given = [getattr(inner, name, None) for name in ("weights", "targets", "reference_losses", "target_losses")]
    return isinstance(inner, Scheduled) or any(values is not None for values in given)


@every_policy
class TestState:
    @settings(max_examples=20)  # of each of 71 policies
    @given(course=loss_courses, cut=st.integers(0, 8))
    def test_saved_at_any_step_it_goes_on_alike(self, make: Callable[..., Policy], course, cut: int) -> None:
        cut = min(cut, len(course))
        policy, resumed = make(), make()
        last = run(policy, course[:cut])[-1]
        saved = json.dumps(policy.state_dict(), allow_nan=False)
        resumed.start(mixture())
        resumed.load_state_dict(json.loads(saved))
        assert json.dumps(resumed.state_dict()) == saved
        later = [*course[cut:], *finite_course(6)]
        np.testing.assert_array_equal(
            table([last, *follow(resumed, later, last, cut + 1)]), table([last, *follow(policy, later, last, cut + 1)])
        )

    def test_saving_changes_nothing(self, make: Callable[..., Policy]) -> None:
        policy, watched = make(), make()
        first, other = policy.start(mixture()), watched.start(mixture())
        for step, losses in enumerate(finite_course(8), start=1):
            watched.state_dict()
            first = policy.update(observation(step, losses, first.weights))
            other = watched.update(observation(step, losses, other.weights))
            np.testing.assert_array_equal(first.weights, other.weights)

    def test_a_saved_state_does_not_change_later(self, make: Callable[..., Policy]) -> None:
        policy = make()
        last = run(policy, finite_course(4))[-1]
        state = policy.state_dict()
        before = json.dumps(state)
        follow(policy, finite_course(4, seed=1), last, 5)
        assert json.dumps(state) == before

    def test_starting_again_forgets_the_earlier_run(self, make: Callable[..., Policy]) -> None:
        policy = make()
        first = table(run(policy, finite_course(8)))
        run(policy, finite_course(5, seed=1))
        np.testing.assert_array_equal(table(run(policy, finite_course(8))), first)

    def test_two_runs_are_the_same(self, make: Callable[..., Policy]) -> None:
        np.testing.assert_array_equal(table(run(make(), finite_course(8))), table(run(make(), finite_course(8))))

    def test_the_state_of_something_else_is_refused(self, make: Callable[..., Policy]) -> None:
        policy = make()
        policy.start(mixture())
        with pytest.raises(ValueError, match="state"):
            policy.load_state_dict({"something else": 1})


@every_policy
class TestDescription:
    @pytest.mark.parametrize("unit", ["samples", "tokens"])
    def test_the_unit_is_kept_through_wrappers(self, make: Callable[..., Policy], unit: str) -> None:
        assert make(unit=unit).unit == unit

    def test_samples_are_the_unit_unless_it_is_given(self, make: Callable[..., Policy]) -> None:
        assert make().unit == "samples"

    def test_another_unit_is_refused(self, make: Callable[..., Policy]) -> None:
        with pytest.raises(ValueError, match="unit must be 'samples' or 'tokens', got 'bytes'"):
            make(unit="bytes")

    def test_what_is_not_needed_is_not_looked_at(self, make: Callable[..., Policy]) -> None:
        policy, blind = make(), make()
        first, other = policy.start(mixture()), blind.start(mixture())
        for step, losses in enumerate(finite_course(8), start=1):
            seen = observation(step, losses, first.weights)
            hidden = seen
            if "loss" not in blind.needs:
                hidden = replace(hidden, losses=np.full(4, np.nan))
            if "evaluation_loss" not in blind.needs:
                hidden = replace(hidden, evaluation_losses=None)
            if "excess_loss" not in blind.needs:
                hidden = replace(hidden, excess_losses=None)
            if "gradient_variance" not in blind.needs:
                hidden = replace(hidden, gradients=without_variance(seen) if "gradient" in blind.needs else None)
            if "loss_after" not in blind.needs:
                hidden = replace(hidden, losses_after=None)
            first, other = policy.update(seen), blind.update(hidden)
            np.testing.assert_array_equal(first.weights, other.weights)


WRAPPERS = {
    "Floor": lambda policy: Floor(policy),
    "Smoothed": lambda policy: Smoothed(policy),
    "WarmUp": lambda policy: WarmUp(policy),
    "Hold": lambda policy: Hold(policy),
    "TrustRegion": lambda policy: TrustRegion(policy),
}


class Needy(Uniform):
    needs = frozenset({"loss", "evaluation_loss"})


class Weighted(Policy):
    """Carries loss weights beside the sampling weights."""

    def start(self, mixture: Mixture) -> Decision:
        return Decision(np.full(4, 0.25), np.array([1.0, 2.0, 3.0, 4.0]))

    def update(self, observation: Observation) -> Decision:
        return Decision(np.full(4, 0.25), np.array([4.0, 3.0, 2.0, 1.0]))


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
class TestWrappers:
    def test_needs_are_those_of_the_inner_policy(self, wrap: Callable[[Policy], Policy]) -> None:
        assert wrap(Uniform()).needs == frozenset()
        assert wrap(LossChange()).needs == {"loss"}
        assert wrap(wrap(LossChange(loss="evaluation"))).needs == {"evaluation_loss"}
        assert wrap(Needy()).needs == {"loss", "evaluation_loss"}

    def test_only_policies_are_wrapped(self, wrap: Callable[[Policy], Policy]) -> None:
        with pytest.raises(TypeError, match="policy must be a Policy to wrap, got str"):
            wrap("uniform")

    def test_the_inner_policy_observes_every_step(self, wrap: Callable[[Policy], Policy]) -> None:
        inner, alone = LossChange(), LossChange()
        run(wrap(inner), finite_course(9))
        run(alone, finite_course(9))
        assert inner.state_dict() == alone.state_dict()


class TestLossWeights:
    @pytest.mark.parametrize("wrap", [Floor, Smoothed], ids=lambda wrap: wrap.__name__)
    def test_wrappers_of_weights_pass_them_on(self, wrap: type[Policy]) -> None:
        first, second = run(wrap(Weighted()), finite_course(1))
        assert first.loss_weights.tolist() == [1.0, 2.0, 3.0, 4.0]
        assert second.loss_weights.tolist() == [4.0, 3.0, 2.0, 1.0]

    def test_a_held_decision_holds_them_and_keeps_them_through_saving(self) -> None:
        policy, resumed = Hold(Weighted(), 3), Hold(Weighted(), 3)
        first, *_, last = run(policy, finite_course(2))
        assert first.loss_weights.tolist() == last.loss_weights.tolist() == [1.0, 2.0, 3.0, 4.0]
        resumed.start(mixture())
        follow(resumed, finite_course(3), first)
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        (held,) = follow(resumed, finite_course(1), last, 1)
        assert held.loss_weights.tolist() == [1.0, 2.0, 3.0, 4.0]
