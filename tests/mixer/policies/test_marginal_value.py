from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixer.measurements import Alignment
from mixer.measurements.alignment import TargetStatistics
from mixer.policies import DGA, GRAPE, DoGE, MarginalValue, Observation, Policy, Safeguard, Uniform
from mixer.policies.marginal_value import pooled
from mixer.policies.objective import Objective
from mixer.policies.shared.agreement import signal_share
from mixer.policies.shared.multipliers import Multipliers
from mixer.policies.shared.repeated import at_most, discounted, planned
from tests.mixer.policies.observed import NAN, Told, mixture, observe
from tests.refusals import refused

EVEN = (1.0, 1.0, 1.0)


def measurement(scores: Any, error: float = 0.0, losses: Any = (1.0,), **seen: Any) -> Observation:
    alignment = np.atleast_2d(np.array(scores, dtype=np.float64))
    targets = TargetStatistics(np.array(losses), alignment, np.full(alignment.shape, error))
    return observe(counts=[8] * alignment.shape[1], targets=targets, **seen)


def decided(policy: Policy, *seen: Observation, objective: Objective | None = None, own: Any = EVEN) -> np.ndarray:
    objective = Objective({"t": 1.0}) if objective is None else objective
    weights = policy.start(replace(mixture(own), objective=objective)).weights
    for observation in seen:
        weights = policy.update(observation).weights
    return weights


def test_a_clear_measurement_moves_the_share_of_the_way_to_the_maximum_by_hand() -> None:
    # Scores 1, 0.5 and 0 of the prior ½, ¼, ¼: the goal is ∝ w⁰ e^{6as}, of agreement a = 0.3 before a second one.
    def goal(agreement: float) -> np.ndarray:
        found = np.log([0.5, 0.25, 0.25]) + 6.0 * agreement * np.array([1.0, 0.5, 0.0])
        return found - np.logaddexp.reduce(found)

    for rate in (1.0, 0.3):
        expected = np.exp((1 - rate) * np.log([0.5, 0.25, 0.25]) + rate * goal(0.3))
        policy = MarginalValue(rate=rate, drift=0.0)
        found = decided(policy, measurement([6.0, 3.0, 0.0]), own=(2, 1, 1))
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-9)
    again = decided(policy, *[measurement([6.0, 3.0, 0.0])] * 40, own=(2, 1, 1))
    np.testing.assert_allclose(again, np.exp(goal((2 * 0.3 + 5) / (2 + 5))), rtol=1e-4)


def test_the_mixture_goes_less_far_after_a_rise_of_the_loss() -> None:
    seen = [measurement([1.0, 0.5, 0.0], losses=(loss,)) for loss in (2.0, 1.9, 1.8)]
    calm, risen = (decided(MarginalValue(), *seen, measurement([1.0, 0.5, 0.0], losses=(own,))) for own in (1.8, 2.7))
    assert 1 / 3 < risen[0] < calm[0]


def test_without_evidence_nothing_moves() -> None:
    noise = measurement([1.0, 0.6, 0.8], error=5.0)
    assert decided(MarginalValue(), *[noise] * 5).tolist() == pytest.approx([1 / 3] * 3, abs=1e-12)
    assert decided(MarginalValue(), observe(counts=[8] * 3)).tolist() == pytest.approx([1 / 3] * 3)
    assert decided(MarginalValue(), measurement([0.0, 0.0, 0.0])).tolist() == pytest.approx([1 / 3] * 3)
    # What was learned stays when the noise grows.
    clear = [measurement([1.0, 1.0, 0.0])] * 8
    assert decided(MarginalValue(), *clear, noise) == pytest.approx(decided(MarginalValue(), *clear), abs=0.02)


def test_a_change_that_noise_does_not_explain_counts_half_until_it_is_confirmed() -> None:
    policy, before, after = (
        MarginalValue(drift=0.02),
        measurement([1.0, 0.0, 0.5], 0.01),
        measurement([0.0, 1.0, 0.5], 0.01),
    )
    settled = decided(policy, *[before] * 10)
    turned = decided(policy, *[before] * 10, after)  # nothing is known, so it is half of the way to the prior
    np.testing.assert_allclose(turned, np.sqrt(settled / 3) / np.sqrt(settled / 3).sum(), atol=0.02)
    np.testing.assert_allclose(policy.scores, [0.5, 0.5, 0.5], atol=0.03)
    decided(policy, *[before] * 10, after, after, after)
    np.testing.assert_allclose(policy.scores, [0.0, 1.0, 0.5], atol=0.15)


def test_streams_within_two_standard_errors_share_their_score() -> None:
    assert pooled(np.array([0.9, 0.1, 1.0, 0.15]), 0.01).tolist() == pytest.approx([0.95, 0.125, 0.95, 0.125])
    assert pooled(np.array([0.9, 0.1]), 0.0).tolist() == [0.9, 0.1]
    assert signal_share(np.array([1.0, 0.0]), 0.1) == pytest.approx(1 - 0.1 / 0.5)
    assert signal_share(np.array([1.0, 1.0]), 0.1) == 0.0


def test_a_stream_without_a_measurement_keeps_its_share() -> None:
    found = decided(MarginalValue(), measurement([1.0, NAN, 0.0]))
    assert found[1] == pytest.approx(1 / 3)
    assert found[0] > 1 / 3 > found[2]


def test_the_worst_target_rules() -> None:
    worst = Objective({"x": 1.0, "y": 1.0}, "worst")
    seen = measurement([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], losses=(1.0, 4.0))
    found = decided(MarginalValue(tau=20.0), seen, objective=worst)
    assert found[1] > 0.5
    assert found[0] == pytest.approx(found[2])


def test_a_bound_that_is_passed_turns_the_mixture_and_lets_go() -> None:
    objective = Objective({"new": 1.0}, bounds={"old": 1.05})

    def step(old: float) -> Observation:
        return measurement([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], 0.01, losses=(2.0, old), progress=1.0)

    free = decided(MarginalValue(), *[step(1.0)] * 6, objective=objective)
    held = decided(MarginalValue(), step(1.0), *[step(1.2)] * 6, objective=objective)
    assert free[1] < 0.2 < held[1]
    back = decided(MarginalValue(), step(1.0), *[step(1.2)] * 6, *[step(1.0)] * 60, objective=objective)
    assert back == pytest.approx(free, abs=0.05)


def test_dga_by_hand() -> None:
    # α ∝ e^{η s} with s = 1, ½, 0, then half of the way to it.
    alpha = np.exp([2.0, 1.0, 0.0]) / np.exp([2.0, 1.0, 0.0]).sum()
    found = decided(DGA(rate=2.0), measurement([6.0, 3.0, 0.0]))
    np.testing.assert_allclose(found, 0.5 * alpha + 0.5 / 3, rtol=1e-9)
    raw = decided(DGA(rate=0.5, average=1.0, scale_free=False), measurement([4.0, 2.0, 0.0]))
    np.testing.assert_allclose(raw, alpha, rtol=1e-9)


def test_a_policy_that_harms_is_followed_again_when_its_mixture_is_worth_more(caplog: pytest.LogCaptureFixture) -> None:
    told = Told([1, 1, 1], [0.1, 0.1, 0.8])
    seen = [measurement([1.0, 1.0, 0.0], 0.05, step=k, shares=[0.1, 0.1, 0.8]) for k in range(1, 5)]
    guard = Safeguard(told)
    assert decided(guard, *seen[:2]).tolist() == [0.1, 0.1, 0.8]
    assert decided(guard, *seen).tolist() == pytest.approx([1 / 3] * 3)
    assert "Step 3: Safeguard(Told) is not followed for a while" in caplog.text
    helping = [measurement([0.0, 0.0, 1.0], 0.05, step=k, shares=[0.1, 0.1, 0.8]) for k in range(1, 30)]
    weights = [guard.update(own).weights[2] for own in helping[:6]]
    # The harm at step 4 is made up for at the first of these: ¼, ½, ¾ and all of the way from ⅓ to 0.8.
    assert weights == pytest.approx([1 / 3 + part * (0.8 - 1 / 3) for part in (0.25, 0.5, 0.75, 1, 1, 1)])
    assert decided(Safeguard(told), *helping).tolist() == [0.1, 0.1, 0.8]


def test_a_rising_loss_is_harm_too(caplog: pytest.LogCaptureFixture) -> None:
    random, guard = np.random.default_rng(1), Safeguard(Uniform())
    falling = [measurement(EVEN, losses=(3.0 - 0.1 * k + 0.02 * random.random(),), step=k) for k in range(1, 13)]
    decided(guard, *falling)
    assert guard.explain()["followed"] == 1.0
    for k in range(13, 18):
        guard.update(measurement(EVEN, losses=(1.8 + 0.1 * (k - 12) + 0.02 * random.random(),), step=k))
    assert "the objective's loss has risen from" in caplog.text


def on_both(development: float, test: float, **seen: Any) -> Observation:
    observation = measurement([0.0, 0.0, 1.0], 0.05, losses=(development,), **seen)
    targets = replace(observation[Alignment], test_losses=np.array([test]), gap_error=np.array([0.02]))
    return replace(observation, measured={**observation.measured, Alignment: targets})


def test_development_rows_that_stand_in_a_stream_do_not_mislead(caplog: pytest.LogCaptureFixture) -> None:
    guard, told = Safeguard(Told([1, 1, 1], [0.1, 0.1, 0.8])), "Rows of 't' seem to stand in 'c'"
    assert decided(guard, on_both(3.0, 3.1), on_both(2.0, 2.1), on_both(1.8, 1.95)).tolist() == [0.1, 0.1, 0.8]
    assert told not in caplog.text
    for development in (1.0, 0.8):
        assert guard.update(on_both(development, 2.0)).weights.tolist() == pytest.approx([1 / 3] * 3)
    assert caplog.text.count(told) == 1
    assert guard.explain()["gap"] == pytest.approx(np.log(2.0 / 0.8) - np.log(3.1 / 3.0))
    assert guard.update(on_both(2.0, 2.0)).weights[2] == pytest.approx(1 / 3 + 0.25 * (0.8 - 1 / 3))
    # A high loss on the test rows is no sign if it was high from the start.
    again = Safeguard(Told([1, 1, 1], [0.1, 0.1, 0.8]))
    assert decided(again, *[on_both(1.0, 3.0)] * 9).tolist() == [0.1, 0.1, 0.8]


def test_noise_harms_no_policy_however_long_the_run_is(caplog: pytest.LogCaptureFixture) -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        noise, scores = 2.0 + 0.1 * random.standard_normal(200), 1.0 + 0.3 * random.standard_normal((200, 3))
        guard = Safeguard(Told([0.1, 0.1, 0.8]), target_share=0.0)
        decided(guard, *[measurement(s, 0.3, losses=(loss,)) for s, loss in zip(scores, noise, strict=True)])
    # A loss that is not known is no loss of 0.
    guard = Safeguard(Uniform())
    decided(guard, *[measurement(EVEN, losses=(NAN if k == 8 else 2.0 + 1e-6 * k,)) for k in range(60)])
    assert not caplog.text


def test_a_stream_with_an_end_lasts_until_the_run_ends() -> None:
    assert at_most(np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.5, 1.0])) == pytest.approx([0.3, 0.5, 0.2])
    assert at_most(np.array([0.5, 0.5]), np.array([0.2, 0.3])) == pytest.approx([0.2, 0.3])
    # 100 steps of 10 samples, of which the best stream has 200; a tenth of them are taken before it is known.
    for policy in (MarginalValue(), Safeguard(MarginalValue())):
        start = replace(mixture(EVEN), objective=Objective({"t": 1.0}), ends=np.array([200.0, np.inf, np.inf]))
        seen, weights = np.zeros(3), policy.start(start).weights
        for step in range(1, 101):
            seen += 10.0 * weights
            own = {"seen": seen, "progress": step / 100, "step": step, "weights": weights}
            weights = policy.update(measurement([1.0, 0.0, 0.0], 0.01, **own)).weights
            left = (200.0 - seen[0]) / max(1000.0 - seen.sum(), 1.0)
            assert step == 100 or weights[0] <= left + 1e-9
        assert seen[0] == pytest.approx(200.0)


def test_doge_and_grape_go_by_targets_that_are_no_streams() -> None:
    seen = measurement([[4.0, 2.0, -2.0], [0.0, 2.0, 0.0]], losses=(2.0, 1.0), step=1)
    two = Objective({"x": 3.0, "y": 1.0})
    # ¾·4, ¾·2 + ¼·2 and −1.5 over the largest, 3: 1, ⅔ and 0.
    found = decided(DoGE("objective", 1, 0.5), seen, objective=two)
    np.testing.assert_allclose(found, np.exp([0.5, 1 / 3, 0.0]) / np.exp([0.5, 1 / 3, 0.0]).sum())
    # <∇log L_n, g_k> are 2, 1, −1 and 0, 2, 0, of which the mixture has ⅔ each: targets keep ¾ and ¼.
    policy = GRAPE("objective", 1, 0.5, 10.0)
    scores = 0.5 * np.array([1.5, 0.75 + 0.5, -0.75])
    np.testing.assert_allclose(decided(policy, seen, objective=two), np.exp(scores) / np.exp(scores).sum())
    np.testing.assert_allclose(policy.target_weights, [0.75, 0.25])
    assert (policy.needs, policy.min_samples) == ((Alignment("plain", policy.interval_steps),), 0)
    with refused("targets"):
        DoGE("math")


def test_repeated_rows_are_worth_less_each_time() -> None:
    scores = np.array([1.0, 0.5, -0.5, NAN])
    found = discounted(scores, np.array([1.0, 16.0, 31.0, 9.0]), 15.0)
    np.testing.assert_allclose(found, [1.0, 0.5 / np.e, -0.5, NAN])
    seen = measurement([1.0, 1.0, 0.0], seen=np.array([3000, 10, 10]))  # of 100 samples each
    assert decided(MarginalValue(), seen)[0] < decided(MarginalValue(), seen)[1]
    # The passes of the whole run count: at a tenth of it, ten times those so far.
    early = replace(seen, seen=seen.seen // 10, progress=0.1)
    np.testing.assert_allclose(decided(MarginalValue(), early), decided(MarginalValue(), seen))


def test_planned_passes_are_those_that_discounts_on_the_way_would_leave() -> None:
    wanted, passes, steps = np.array([0.0, 0.5, 1.0, 4.0, 60.0]), np.zeros(5), 100_000
    for _ in range(steps):
        passes += wanted * discounted(np.ones(5), passes, 15.0) / steps
    np.testing.assert_allclose(planned(wanted, 15.0) * wanted, passes, rtol=1e-3)
    assert planned(np.zeros(1), 15.0) == 1.0


def test_streams_that_are_targets_have_their_part_by_importance() -> None:
    sizes = np.array([100, 100, 100])
    for objective, anchor in (
        (Objective({"a": 3.0, "b": 1.0}), [0.5625, 0.1875, 0.0]),
        (Objective({"a": 1.0, "outside": 1.0}), [0.375, 0.0, 0.0]),
        (Objective({"outside": 1.0}), [0.0, 0.0, 0.0]),
    ):
        policy = Safeguard(Uniform())
        start = replace(mixture(EVEN), objective=objective, num_samples=sizes)
        rest = 1.0 - np.sum(anchor)
        np.testing.assert_allclose(policy.start(start).weights, np.array(anchor) + rest / 3.0)
        # A run of 3,000 samples would pass 16.875 times over stream 0 and 5.625 times over stream 1, or 11.25 and 0.
        seen = observe(counts=[8] * 3, seen=np.array([600, 500, 400]), progress=0.5)
        part = np.array([own and (1.0 + 15.0 * np.log(1.0 + (30.0 * own - 1.0) / 15.0)) / 30.0 for own in anchor])
        np.testing.assert_allclose(policy.update(seen).weights, part + (1.0 - part.sum()) / 3.0)


def test_the_part_by_importance_follows_the_worst_target() -> None:
    policy = Safeguard(Uniform(), target_share=1.0)
    policy.start(replace(mixture(EVEN), objective=Objective({"a": 1.0, "b": 1.0}, kind="worst")))
    weights = policy.update(measurement([[1.0] * 3, [1.0] * 3], losses=(1.0, 2.0))).weights
    np.testing.assert_allclose(weights, [1 / (1 + np.exp(6.0)), 1 / (1 + np.exp(-6.0)), 0.0], atol=1e-12)
    assert policy.update(observe(counts=[8] * 3)).weights.tolist() == weights.tolist()


def test_an_objective_of_all_streams_is_sampled_by_importance() -> None:
    told, three = Told([0.1, 0.1, 0.8]), {"a": 2.0, "b": 1.0, "c": 1.0}
    for objective, expected in (
        (Objective(three), [0.5, 0.25, 0.25]),
        (Objective(three, kind="worst"), [0.5, 0.25, 0.25]),
        (Objective(three, bounds={"a": 1.05}), [0.4, 0.2125, 0.3875]),
        (Objective({"a": 1.0, "b": 1.0}), [0.4, 0.4, 0.2]),
        (Objective({"a": 1.0, "b": 1.0, "outside": 2.0}), [0.25, 0.25, 0.5]),
    ):
        assert decided(Safeguard(told), objective=objective) == pytest.approx(expected)


def test_a_bound_adds_its_multiplier_to_the_importance_of_its_stream() -> None:
    objective = Objective({"a": 1.0}, bounds={"b": 1.05})
    seen = [measurement([[0.0] * 3] * 2, losses=(2.0, old), progress=1.0) for old in (1.0, 1.0605)]
    # 1 % above the bound at the end: the multiplier is 1, and the part of three quarters is halved.
    assert decided(Safeguard(Uniform()), *seen, objective=objective) == pytest.approx([0.375 + 1 / 12] * 2 + [1 / 12])
    assert decided(Safeguard(Uniform()), seen[0], objective=objective)[1] == pytest.approx(1 / 12)


def test_a_bound_s_multiplier_keeps_what_it_has_without_a_measurement() -> None:
    multipliers = Multipliers(Objective({"a": 1.0}, bounds={"b": 1.0}))
    found = [multipliers.take(np.array([1.0, loss]), 1.0)[1] for loss in (0.0, 2.0, 2.02, NAN, np.inf, 2.0)]
    assert found == pytest.approx([0.0, 0.0, 1.0, 1.0, 4.0, 4.0])


def test_a_bound_s_multiplier_moves_by_the_square_of_the_run_s_progress() -> None:
    multipliers = Multipliers(Objective({"a": 1.0}, bounds={"b": 1.0}))
    losses = [np.array([1.0, loss]) for loss in (2.0, 2.02, 2.02, 1.99)]
    found = [multipliers.take(own, progress)[1] for own, progress in zip(losses, (0.0, 0.0, 0.5, 1.0), strict=True)]
    assert found == pytest.approx([0.0, 0.0, 0.25, 0.0])


def test_a_target_of_no_importance_may_be_unknown() -> None:
    seen = measurement([[1.0, 0.5, 0.0], [NAN, NAN, NAN]], losses=(1.0, NAN))
    worth = seen[Alignment].worth(np.array([1.0, 0.0]))
    assert worth.scores.tolist() == [1.0, 0.5, 0.0]
