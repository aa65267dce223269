import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import DWA, FAMO, CoBa, Decision, Policy
from mixer.policies.shared.decisions import decide
from tests.mixer.policies.losses import mixture, observe

MAKERS: dict[str, Callable[..., Policy]] = {
    "CoBa": lambda **how: CoBa(3, 2, **how),
    "DWA": lambda **how: DWA(0.2, 2, **how),
    "FAMO": lambda **how: FAMO(0.5, **how),
}
OWN = [0.1, 0.0, 0.5, 0.4]
every_policy = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def course(num_steps: int, seed: int = 0) -> list:
    random = np.random.default_rng(seed)
    rows = np.exp(random.normal(size=(num_steps, 4)) / 3)
    return [observe(step, row, evaluation=row, after=0.9 * row**1.1) for step, row in enumerate(rows, start=1)]


def run(policy: Policy, observations: list) -> list[Decision]:
    return [policy.start(mixture(OWN)), *(policy.update(seen) for seen in observations)]


@every_policy
class TestBothActAlike:
    def test_on_average_the_gradient_is_the_same(self, make: Callable[..., Policy]) -> None:
        # Σ_k w_k f_k ∇L_k has the same coefficients, whether w or f is moved.
        sampling, loss = run(make(acts_on="sampling"), course(9)), run(make(acts_on="loss"), course(9))
        for by_samples, by_losses in zip(sampling, loss, strict=True):
            assert by_samples.loss_weights is None
            np.testing.assert_allclose(by_losses.weights, OWN)
            np.testing.assert_allclose(by_losses.weights * by_losses.loss_weights, by_samples.weights, rtol=1e-12)
        assert np.ptp([decision.loss_weights for decision in loss], axis=0).max() > 0.1, "the factors do move"

    def test_the_mean_loss_weight_over_the_samples_is_1(self, make: Callable[..., Policy]) -> None:
        for decision in run(make(acts_on="loss"), course(9)):
            assert decision.weights @ decision.loss_weights == pytest.approx(1.0)

    def test_the_first_loss_weights_change_nothing(self, make: Callable[..., Policy]) -> None:
        assert run(make(acts_on="loss"), [])[0].loss_weights.tolist() == [1.0] * 4

    def test_loss_weights_go_on_alike_after_a_resume(self, make: Callable[..., Policy]) -> None:
        observations = course(12)
        policy, resumed = make(acts_on="loss"), make(acts_on="loss")
        run(policy, observations[:5])
        resumed.start(mixture(OWN))
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        for seen in observations[5:]:
            np.testing.assert_array_equal(policy.update(seen).loss_weights, resumed.update(seen).loss_weights)

    def test_another_word_is_refused(self, make: Callable[..., Policy]) -> None:
        with pytest.raises(ValueError, match=r"acts_on must be 'sampling' .* or 'loss' .*, got 'both'"):
            make(acts_on="both")

    def test_a_stream_without_a_weight_of_its_own_stays_without(self, make: Callable[..., Policy]) -> None:
        assert all(decision.weights[1] == 0.0 for decision in run(make(), course(9)))

    def test_a_stream_that_left_waits_with_its_own_weight(self, make: Callable[..., Policy]) -> None:
        policy = make()
        last = run(policy, course(9))[-1]
        gone = observe(
            10, [1, 1, 1, np.nan], evaluation=[1, 1, 1, np.nan], weights=last.weights, shares=[0.5, 0, 0.5, 0]
        )
        assert policy.update(gone).weights[3] == pytest.approx(0.4)

    @given(seed=st.integers(0, 50))
    def test_a_thousand_streams(self, make: Callable[..., Policy], seed: int) -> None:
        random = np.random.default_rng(seed)
        policy = make()
        policy.start(mixture([1.0] * 1000))
        for step in range(1, 4):
            row = random.random(1000)
            decision = policy.update(observe(step, row, evaluation=row, after=row / 2))
        assert decision.weights.sum() == pytest.approx(1.0)
        assert decision.weights.min() > 0.0


def test_by_hand() -> None:
    # own * factor = (0.1, 0.6) with a sum of 0.7; the third stream is not there and waits with its 0.3.
    own, factors, active = np.array([0.5, 0.2, 0.3]), np.array([0.2, 3.0, 9.0]), np.array([True, True, False])
    np.testing.assert_allclose(decide(factors, own, active, "sampling").weights, [0.1, 0.6, 0.3])
    weighed = decide(factors, own, active, "loss")
    np.testing.assert_allclose(weighed.weights, own)
    np.testing.assert_allclose(weighed.loss_weights, [0.2, 3.0, 1.0])  # over (0.1 + 0.6) / (0.5 + 0.2) = 1


def test_with_nobody_there_the_own_weights_wait() -> None:
    own, nobody = np.array([0.5, 0.5]), np.array([False, False])
    assert decide(np.array([1.0, 3.0]), own, nobody, "sampling").weights.tolist() == [0.5, 0.5]
    assert decide(np.array([1.0, 3.0]), own, nobody, "loss").loss_weights.tolist() == [1.0, 1.0]
