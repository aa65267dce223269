from typing import Any

import numpy as np
import pytest

from mixer.policies import GRAPE, Observation
from tests.mixer.policies.observed import NAN, measured, mixture, weights_of

GRAM = np.array([[4.0, 1], [1, 2]])


def update(losses: Any = (2.0, 4.0), gram: Any = GRAM, step: int = 1) -> Observation:
    return measured([gram[0][0], gram[1][1]], [0, 0], [30, 30], gram, losses=losses, step=step)


def sigmoid(value: float) -> float:
    return 1 / (1 + float(np.exp(-value)))


class TestEquations:
    def test_by_hand(self) -> None:
        # <∇log L_n, g_k> = [[4, 1]/2, [1, 2]/4] = [[2, ½], [¼, ½]]. Rates of improvement at w = ½: 1.25 and 0.375.
        # z ∝ exp(−0.8 · (1.25, 0.375)): z₁ = σ(−0.7). Then w ∝ exp(0.5 (2z₁ + ¼z₂, ½z₁ + ½z₂)).
        policy, first = GRAPE(None, 1, 0.5, 0.8), sigmoid(-0.7)
        weights = weights_of(policy, update())
        np.testing.assert_allclose(policy.target_weights, [first, 1 - first])
        exponent = 0.5 * (2 * first + 0.25 * (1 - first) - 0.5)
        np.testing.assert_allclose(weights, [sigmoid(exponent), sigmoid(-exponent)])
        # Under the present mixture, at w = (¾, ¼): 2·¾ + ½·¼ = 1.625 and ¼·¾ + ½·¼ = 0.3125.
        weights_of(policy, update(), own=(0.75, 0.25))
        assert policy.target_weights[0] == pytest.approx(sigmoid(-0.8 * (1.625 - 0.3125)))

    @pytest.mark.parametrize(
        ("targets", "rates", "losses", "exponent", "played"),
        [
            # One target is plain alignment, towards the second: ¼ and ½; nothing is played.
            (["b"], (0.8, 10.0), (2.0, 4.0), -0.2, [0.0, 1.0]),
            # Without a task rate targets keep their weights: 2·¾ + ¼·¼ − ½ = 1.0625.
            ({"a": 3.0, "b": 1.0}, (0.5, 0.0), (2.0, 4.0), 0.5 * 1.0625, [0.75, 0.25]),
            # Without a loss above zero the first alone plays: 2 and ½; the second keeps its half for when it has one.
            *[(None, (0.8, 10.0), (2.0, loss), 1.2, [0.5, 0.5]) for loss in (NAN, 0.0, -1.0)],
        ],
    )
    def test_targets(self, targets: Any, rates: Any, losses: Any, exponent: float, played: list[float]) -> None:
        policy = GRAPE(targets, 1, *rates)
        np.testing.assert_allclose(weights_of(policy, update(losses)), [sigmoid(exponent), sigmoid(-exponent)])
        assert policy.target_weights.tolist() == pytest.approx(played, rel=1e-14)

    def test_scale_free_by_hand(self) -> None:
        # The targets' own products are 2 and ½, 1.25 on average: the exponents' rates are 0.5/1.25 and 0.8/1.25.
        expected = weights_of(GRAPE(None, 1, 0.4, 0.64), update())
        for unit in (1.0, 1e-100, 1e100):
            found = weights_of(GRAPE(None, 1, 0.5, 0.8, scale_free=True), update(gram=unit * GRAM))
            np.testing.assert_allclose(found, expected)


def test_the_play_s_average_is_its_equilibrium() -> None:
    """Improvements are 9w₁ and w₂: the worse of both is largest where they are even, at w = z = (0.1, 0.9).

    Play by multiplicative weights circles round it; it is the mean that gets there (Freund and Schapire 1999).
    """
    policy = GRAPE(None, 1, 0.05, 0.05, scale_free=True, min_samples=0)
    policy.start(mixture((0.5, 0.5)))
    weights, targets = [], []
    for step in range(1, 1601):
        weights.append(policy.update(update((1.0, 1.0), [[9.0, 0], [0, 1]], step)).weights)
        targets.append(policy.target_weights)
    np.testing.assert_allclose(np.mean(weights, axis=0), [0.1, 0.9], atol=0.03)
    np.testing.assert_allclose(np.mean(targets, axis=0), [0.1, 0.9], atol=0.03)


def test_without_any_loss_or_product_the_weights_hold() -> None:
    nothing = update(gram=np.zeros((2, 2)))
    assert weights_of(GRAPE(None, 1, scale_free=True), nothing, own=(0.3, 0.7)).tolist() == [0.3, 0.7]
    assert weights_of(GRAPE(interval_steps=1), update((NAN, NAN)), own=(0.3, 0.7)).tolist() == [0.3, 0.7]
