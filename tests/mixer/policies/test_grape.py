import json

import numpy as np
import pytest

from mixer.policies import GRAPE
from tests.mixer.policies.gradients import measured, mixture_of

GRAM = [[4.0, 1], [1, 2]]
NAN = float("nan")


def update(losses=(2.0, 4.0), gram=GRAM, step=1):
    return measured([gram[0][0], gram[1][1]], [0, 0], [30, 30], gram=gram, losses=losses, step=step)


def decided(policy: GRAPE, *observations, weights=(0.5, 0.5)) -> np.ndarray:
    decision = policy.start(mixture_of(weights))
    for observation in observations:
        decision = policy.update(observation)
    return decision.weights


def sigmoid(value: float) -> float:
    return 1 / (1 + np.exp(-value))


class TestEquations:
    def test_by_hand(self) -> None:
        # <∇log L_n, g_k> = [[4, 1]/2, [1, 2]/4] = [[2, ½], [¼, ½]]. Rates of improvement at w = ½: 1.25 and 0.375.
        # z ∝ exp(−0.8 · (1.25, 0.375)): z₁ = σ(−0.7). Then w ∝ exp(0.5 (2z₁ + ¼z₂, ½z₁ + ½z₂)).
        policy = GRAPE(None, 1, 0.5, 0.8)
        weights = decided(policy, update())
        first = sigmoid(-0.7)
        np.testing.assert_allclose(policy.target_weights, [first, 1 - first])
        exponent = 0.5 * (2 * first + 0.25 * (1 - first) - 0.5)
        np.testing.assert_allclose(weights, [sigmoid(exponent), sigmoid(-exponent)])

    def test_improvement_is_that_under_the_present_mixture(self) -> None:
        # At w = (¾, ¼): 2·¾ + ½·¼ = 1.625 and ¼·¾ + ½·¼ = 0.3125.
        policy = GRAPE(None, 1, 0.5, 0.8)
        decided(policy, update(), weights=(0.75, 0.25))
        assert policy.target_weights[0] == pytest.approx(sigmoid(-0.8 * (1.625 - 0.3125)))

    def test_one_target_is_plain_alignment(self) -> None:
        # Towards the second: ¼ and ½; nothing is played.
        policy = GRAPE(["stream 1"], 1, 0.8, 10.0)
        np.testing.assert_allclose(decided(policy, update()), [sigmoid(-0.2), sigmoid(0.2)])
        assert policy.target_weights.tolist() == [0.0, 1.0]

    def test_scale_free_by_hand(self) -> None:
        # The targets' own products are 2 and ½, 1.25 on average: the exponents' rates are 0.5/1.25 and 0.8/1.25.
        expected = decided(GRAPE(None, 1, 0.4, 0.64), update())
        for factor in (1.0, 1e-100, 1e100):
            found = GRAPE(None, 1, 0.5, 0.8, scale_free=True)
            np.testing.assert_allclose(decided(found, update(gram=(factor * np.array(GRAM)).tolist())), expected)

    def test_without_a_task_rate_targets_keep_their_weights(self) -> None:
        policy = GRAPE({"stream 0": 3.0, "stream 1": 1.0}, 1, 0.5, 0.0)
        weights = decided(policy, update())
        np.testing.assert_allclose(policy.target_weights, [0.75, 0.25])
        # 2·¾ + ¼·¼ − ½ = 1.0625.
        assert weights[0] == pytest.approx(sigmoid(0.5 * 1.0625))

    def test_the_paper_s_rates(self) -> None:
        policy = GRAPE()
        assert (policy.rate, policy.task_rate, policy.interval_steps) == (1.5, 10.0, 100)


class TestTargets:
    def test_the_play_s_average_is_its_equilibrium(self) -> None:
        """Improvements are 9w₁ and w₂: the worse of both is largest where they are even, at w = z = (0.1, 0.9).

        Play by multiplicative weights circles round it; it is the mean that gets there (Freund and Schapire 1999).
        """
        policy = GRAPE(None, 1, 0.02, 0.02, scale_free=True, min_samples=0)
        policy.start(mixture_of((0.5, 0.5)))
        weights, targets = [], []
        for step in range(1, 4001):
            weights.append(policy.update(update((1.0, 1.0), [[9.0, 0], [0, 1]], step)).weights)
            targets.append(policy.target_weights)
        np.testing.assert_allclose(np.mean(weights, axis=0), [0.1, 0.9], atol=0.03)
        np.testing.assert_allclose(np.mean(targets, axis=0), [0.1, 0.9], atol=0.03)

    @pytest.mark.parametrize("loss", [NAN, 0.0, -1.0])
    def test_a_target_without_a_loss_above_zero_is_left_out(self, loss: float) -> None:
        # The first alone plays: 2 and ½; the second keeps its half for when it has one.
        policy = GRAPE(None, 1, 0.8, 10.0)
        np.testing.assert_allclose(decided(policy, update((2.0, loss))), [sigmoid(1.2), sigmoid(-1.2)])
        assert policy.target_weights.tolist() == [0.5, 0.5]

    def test_without_any_the_weights_hold(self) -> None:
        assert decided(GRAPE(interval_steps=1), update((NAN, NAN)), weights=(0.3, 0.7)).tolist() == [0.3, 0.7]

    def test_huge_products_stay_weights(self) -> None:
        weights = decided(GRAPE(interval_steps=1), update((1e-300, 1e-300), [[1e300, -1e300], [-1e300, 1e300]]))
        assert np.isfinite(weights).all()
        assert weights.sum() == pytest.approx(1.0)

    def test_resumed_it_plays_on(self) -> None:
        policy, resumed = GRAPE(None, 1, 0.5, 0.8), GRAPE(None, 1, 0.5, 0.8)
        decided(policy, update())
        resumed.start(mixture_of((0.5, 0.5)))
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        later = update((1.0, 3.0), [[1.0, -0.5], [-0.5, 3]], step=2)
        assert policy.update(later).weights.tolist() == resumed.update(later).weights.tolist()
        np.testing.assert_array_equal(policy.target_weights, resumed.target_weights)


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"GRAPE: targets must be names of streams.*unknown: \['math'\]"):
        GRAPE(["math"]).start(mixture_of([1.0]))
