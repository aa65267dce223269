from dataclasses import replace

import numpy as np
import pytest

from mixer.measurements import Alignment
from mixer.policies import DGA, GRAPE, DoGE, MarginalValue, Observation, Safeguard
from mixer.policies.marginal_value import pooled
from mixer.policies.objective import Objective
from mixer.policies.shared.agreement import signal_share
from mixer.policies.shared.multipliers import Multipliers
from mixer.policies.shared.repeated import at_most
from tests.mixer.policies.observed import NAN, decided, measurement, mixture, observe
from tests.refusals import refused

EVEN = (1.0, 1.0, 1.0)


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
