from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from mixer.policies import ObjectiveDescent, Policy, Uniform
from tests.mixer.policies.observed import NAN, led, measured, mixture, observe, weights_of

NOISY = ((1.0, 1.0), (1200.0, 0.0), [30, 30])  # the candidate leaves the first stream
CLOSE = [[1, 0.5], [0.5, 1]]
THIRDS = (1 / 3, 1 / 3, 1 / 3)


def believing(**arguments: Any) -> ObjectiveDescent:
    """Goes to the predicted best at once, as far as the simplex."""
    return ObjectiveDescent(**{"interval_steps": 1, "evidence": 0.0, "max_ratio": 1e6, "min_samples": 0, **arguments})


class TestBestMixture:
    @pytest.mark.parametrize(
        ("arguments", "seen", "own", "share"),
        [
            # G = 1, b = 60, s = 0.1, σ² = (120, 0): sσ²/b = (0.2, 0), half of it in the slope: w₁ − ½ + 0.1 = w₂ − ½.
            ({}, ([1, 1], [120, 0]), 0.5, 0.45),
            # Without noise steep streams have no more: the own weights are the objective.
            *[({}, (norms, [0, 0], [[norms[0], 0.5], [0.5, norms[1]]]), 0.5, 0.5) for norms in ((100, 1), (1, 1e6))],
            ({}, ([4, 1], [0, 0]), 0.2, 0.2),
            # The bound at a short step does prefer them: s (4w₁) − 2 = s (1 − w₁) − ½ at s = ½: w₁ = 0.8.
            ({"criterion": "descent", "step_sharpness": 0.5}, ([4, 1], [0, 0]), 0.5, 0.8),
            # a = (1, 0), G = [[1, ½], [½, 1]], sσ²/2b = (0.5, 0): w₁ + ½w₂ − 1 + ½ = ½w₁ + w₂ − ½: w₁ = w₂.
            ({"targets": ["a"]}, ([1, 1], [600, 0], CLOSE), 0.5, 0.5),
            ({"targets": ["a"]}, ([1, 1], [0, 0], CLOSE), 0.5, 1.0),
            # Within the ratio: the second has a share of 0.5/1.5 at least.
            ({"targets": ["a"], "max_ratio": 1.5}, ([1, 1], [0, 0]), 0.5, 2 / 3),
            # Without a target that is there the own weights hold.
            ({"targets": ["a"]}, ([NAN, 1], [NAN, 1]), 0.4, 0.4),
        ],
    )
    def test_by_hand(self, arguments: dict[str, Any], seen: Any, own: float, share: float) -> None:
        batch = measured(seen[0], seen[1], [1, 59] if np.isnan(seen[0][0]) else [30, 30], *seen[2:])
        weights = weights_of(believing(**arguments), batch, own=(own, 1 - own))
        np.testing.assert_allclose(weights, [share, 1 - share], atol=0.02 if max(seen[0]) > 50 else 1e-4)

    @pytest.mark.parametrize("loss", ["train", "excess", "evaluation"])
    def test_the_worst_is_a_softmax_by_hand(self, loss: Any) -> None:
        # Without noise w = a ∝ ½ exp(τL): τ (L₂ − L₁) = 2 · ½, by the last losses of the kind that were seen.
        name = {"train": "losses", "excess": "excess_losses", "evaluation": "evaluation_losses"}[loss]
        course = [measured([1, 1], [0, 0], [30, 30], **{"losses": [9.0, 1.0], name: [1.0, 1.5]})]
        if loss == "evaluation":
            course += [measured([1, 1], [0, 0], [30, 30], losses=[9.0, 1.0])]
        policy = believing(objective="worst", tau=2.0, loss=loss)
        np.testing.assert_allclose(weights_of(policy, *course)[1], 1 / (1 + np.exp(-1.0)), atol=1e-5)
        assert policy.needs == {"gradient_variance", "loss" if loss == "train" else f"{loss}_loss"}

    @pytest.mark.parametrize("scale", [1e-200, 1e-3, 1e6, 1e290])
    def test_units_say_nothing(self, scale: float) -> None:
        norms, variance, gram = np.array([4.0, 1, 2]), np.array([90.0, 20, 300]), np.full((3, 3), 0.3)
        expected, found = (
            weights_of(believing(), measured(u * norms, u * variance, [20] * 3, u * gram), own=THIRDS)
            for u in (1.0, scale)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-8)


class TestEvidence:
    def test_own_weights_hold_to_the_bit_without_evidence(self) -> None:
        policy = ObjectiveDescent(interval_steps=1)
        assert weights_of(policy, *[measured(*NOISY)] * 3, own=(0.3, 0.7)).tolist() == [0.3, 0.7]
        assert policy.trust == 0.0

    def test_the_base_needs_none(self) -> None:
        # a ∝ exp(2 · (1, 1.5)) = (0.269, 0.731); within a factor of 1.2 of (0.5, 0.5) the first has 0.5 / 1.2.
        batch = measured(*NOISY, losses=[1.0, 1.5])
        for max_ratio, share in ((10.0, 1 / (1 + np.exp(-1.0))), (1.2, 1 - 0.5 / 1.2)):
            policy = ObjectiveDescent("worst", interval_steps=1, tau=2.0, max_ratio=max_ratio)
            np.testing.assert_allclose(weights_of(policy, batch)[1], share, rtol=1e-12)
            assert policy.trust == 0.0
        weights = weights_of(ObjectiveDescent(targets=["b"], interval_steps=1, max_ratio=1.5), batch)
        np.testing.assert_allclose(weights, [1 / 3, 2 / 3])

    def test_a_gain_that_is_confirmed_is_taken_and_given_back_when_it_turns_round(self) -> None:
        policy = ObjectiveDescent(interval_steps=1, decay=0.95)
        weights = weights_of(policy, *[measured(*NOISY, step=step) for step in range(1, 8)])
        assert policy.trust == pytest.approx(1.0)
        np.testing.assert_allclose(weights, [0.25, 0.75], atol=1e-5)
        for step in range(8, 20):  # the other stream is the noisy one now, as every new measurement says
            weights = policy.update(measured((1.0, 1.0), (0.0, 1200.0), [30, 30], step=step)).weights
        assert policy.trust == 0.0
        np.testing.assert_allclose(weights, [0.5, 0.5])

    def test_a_measurement_that_lacks_a_stream_is_no_evidence(self) -> None:
        policy = ObjectiveDescent(interval_steps=1)
        led(policy, [measured(*NOISY), *[measured([1, NAN], [1200, NAN], [59, 1])] * 10])
        assert policy.state_dict()["evidence"]["count"] == 0
        assert policy.trust == 0.0


def test_a_stream_that_left_is_left_out_and_the_others_go_on() -> None:
    gone = measured([NAN, 1, 1], [NAN, 120, 0], [0, 30, 30], shares=[0, 0.5, 0.5])
    weights = weights_of(believing(), measured([1, 1, 1], [0, 0, 0], [20] * 3), *[gone] * 60, own=THIRDS)
    assert weights[0] == pytest.approx(1 / 3)
    np.testing.assert_allclose(weights[1:] / weights[1:].sum(), [0.45, 0.55], atol=1e-3)


def ends(setting: str, policy: Policy, seed: int) -> np.ndarray:
    """Losses late in a training on streams `½ Σ_d h_kd (θ_d − c_kd)²` with noise of each sample's gradient."""
    random, shape = np.random.default_rng(11), (4, 12)
    steep = np.array([[3.0], [1.0], [0.5], [0.2]]) * np.ones(shape)
    centres, curvatures, deviations = {
        "one steep": (random.normal(size=shape), steep, np.full(4, 3.0)),
        "steep ones are noisy": (random.normal(size=shape), steep, np.array([12.0, 6.0, 3.0, 1.0])),
        "one is noise": (np.ones(shape) + 0.05 * random.normal(size=shape), np.ones(shape), np.array([2, 2, 2, 30.0])),
    }[setting]
    random, position, late = np.random.default_rng(seed), np.zeros(12), []
    weights = policy.start(mixture([0.25] * 4)).weights
    for step in range(1, 401):
        counts, losses = np.maximum(2, np.round(48 * weights)).astype(int), 0.5 * curvatures * (position - centres) ** 2
        sizes = deviations / np.sqrt(12)
        drawn = [size * random.normal(size=(count, 12)) for size, count in zip(sizes, counts, strict=True)]
        gradients = curvatures * (position - centres) + [noise.mean(axis=0) for noise in drawn]
        variance = np.array([noise.var(axis=0, ddof=1).sum() for noise in drawn])
        gram, shown = gradients @ gradients.T, {"weights": weights, "losses": losses.sum(axis=1), "step": step}
        norms, seen = np.diagonal(gram) - variance / counts, observe(counts=counts, **shown)
        seen = seen if step % 4 else measured(norms, variance, counts, gram, **shown)
        position, weights = position - 0.1 * (counts / counts.sum()) @ gradients, policy.update(seen).weights
        late.append(losses.sum(axis=1))
    return np.asarray(np.mean(late[360:], axis=0))


def descends(**arguments: Any) -> ObjectiveDescent:
    limit = {"max_ratio": 4.0} if {"objective", "targets"} & set(arguments) else {}
    return ObjectiveDescent(**{"interval_steps": 4, **limit, **arguments})


TRAININGS: list[tuple[str, Callable[[], Policy], Callable[..., float], float]] = [
    ("one is noise", partial(descends, evidence=2.0), np.mean, 1.0),
    # Believing at once does little harm.
    *[("one steep", partial(descends, evidence=evidence), np.mean, 1.01) for evidence in (2.0, 0.0)],
    *[(name, partial(descends, objective="worst"), np.max, 0.99) for name in ("one steep", "steep ones are noisy")],
    *[("one steep", partial(descends, targets=["c"], evidence=z), lambda made: made[2], 1.0) for z in (2.0, 0.0)],
    # Following steep streams follows noise, but for the evidence.
    ("one is noise", partial(descends, criterion="descent"), np.mean, 1.05),
]


@pytest.mark.parametrize(
    ("setting", "make", "measure", "most"),
    [("one is noise", partial(descends, evidence=0.0), np.mean, 0.9)]
    + [pytest.param(*training, marks=pytest.mark.full) for training in TRAININGS],
)
def test_what_is_descended_ends_lower_than_with_equal_shares(
    setting: str, make: Callable[[], Policy], measure: Callable[..., float], most: float
) -> None:
    """Settings and seeds were not those that the defaults were chosen on."""
    ours, theirs = (np.mean([measure(ends(setting, made(), k)) for k in range(3)]) for made in (make, Uniform))
    assert ours <= most * theirs
