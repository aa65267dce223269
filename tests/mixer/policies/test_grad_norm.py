import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import GradNorm
from tests.mixer.policies.gradients import measured, mixture_of, unmeasured_step

NAN = float("nan")


def update(norms=(2.0, 1.0), losses=(1.0, 1.0), step=1):
    return measured(np.square(norms), [1.0] * len(norms), [30] * len(norms), losses=losses, step=step)


def decided(policy: GradNorm, *observations, weights=(0.5, 0.5)):
    decision = policy.start(mixture_of(weights))
    for observation in observations:
        decision = policy.update(observation)
    return decision


class TestFixedPoint:
    def test_equal_rates_ask_for_equal_norms(self) -> None:
        # y ∝ 1/2, 1 with the sum 2: 2/3 and 4/3, so that both norms are 4/3.
        decision = decided(GradNorm(1.5, interval_steps=1, rate=1.0), update())
        np.testing.assert_allclose(decision.loss_weights, [2 / 3, 4 / 3])
        assert decision.weights.tolist() == [0.5, 0.5]

    def test_what_lags_behind_has_the_larger_gradient_by_hand(self) -> None:
        # Losses go from (4, 2) to (1, 2), no smoothing: ratios ¼ and 1, r = 0.4 and 1.6; α = ½: √r in a ratio of 1 : 2.
        # y ∝ 1/2, 2/1: 0.4 and 1.6.
        policy = GradNorm(0.5, interval_steps=1, rate=1.0, decay=0.0)
        decision = decided(policy, update(losses=(4.0, 2.0)), update(losses=(1.0, 2.0), step=2))
        np.testing.assert_allclose(decision.loss_weights, [0.4, 1.6])

    @given(
        norms=st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3),
        losses=st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3),
        alpha=st.floats(0.0, 1.5),
    )
    def test_norms_are_the_target_s(self, norms: list[float], losses: list[float], alpha: float) -> None:
        """Equation 1 of the paper: `y_k ||g_k|| = Ḡ r_k^α` with Ḡ the mean of the left sides over that of `r^α`."""
        policy = GradNorm(alpha, interval_steps=1, rate=1.0, max_factor=1e6, decay=0.0)
        last = update(norms, losses, step=2)
        found = decided(policy, update(norms, (1.0, 1.0, 1.0)), last, weights=[1 / 3] * 3).loss_weights
        rates = np.array(losses) / np.mean(losses)
        quotients = found * np.array(norms) / rates**alpha
        np.testing.assert_allclose(quotients, quotients[0])
        assert found.sum() == pytest.approx(3.0)

    def test_a_part_of_the_way(self) -> None:
        # Logarithms go half way: 1/√2 : 1 after the first, and on to 1 : 2.
        policy = GradNorm(interval_steps=1, rate=0.5)
        first = decided(policy, update()).loss_weights
        assert first[1] / first[0] == pytest.approx(np.sqrt(2))
        for step in range(2, 40):
            last = policy.update(update(step=step)).loss_weights
        assert last[1] / last[0] == pytest.approx(2.0)

    def test_on_sampling(self) -> None:
        decision = decided(GradNorm(acts_on="sampling", interval_steps=1, rate=1.0), update(), weights=(0.8, 0.2))
        assert decision.loss_weights is None
        # 0.8 · 2/3 and 0.2 · 4/3 are 2 : 1.
        np.testing.assert_allclose(decision.weights, [2 / 3, 1 / 3])


class TestAwkward:
    def test_the_factors_of_those_that_are_there_have_a_mean_of_1(self) -> None:
        policy = GradNorm(0.0, interval_steps=1, rate=1.0)
        decided(policy, update((4.0, 2.0, 1.0), (1.0, 1.0, 1.0)), weights=(0.4, 0.3, 0.3))  # y ∝ 1, 2, 4
        left = replace(unmeasured_step([30, 30, 30], step=2), active=np.array([True, True, False]))
        np.testing.assert_allclose(policy.update(left).loss_weights, [2 / 3, 4 / 3, 1.0])

    def test_losses_are_weighed_from_the_start(self) -> None:
        assert decided(GradNorm()).loss_weights.tolist() == [1.0, 1.0]

    def test_a_gradient_of_nothing_but_noise_has_a_bound(self) -> None:
        # The squared norm is estimated as −1: most for it, least for the other, 100 : 1.
        policy = GradNorm(interval_steps=1, rate=1.0, max_factor=10.0)
        decision = decided(policy, measured([-1.0, 4.0], [1, 1], [30, 30], losses=(1.0, 1.0)))
        np.testing.assert_allclose(decision.loss_weights, [200 / 101, 2 / 101])

    @pytest.mark.parametrize("loss", [NAN, 0.0, -2.0])
    def test_without_a_loss_above_zero_the_rate_is_one(self, loss: float) -> None:
        decision = decided(GradNorm(interval_steps=1, rate=1.0), update(losses=(1.0, loss)))
        np.testing.assert_allclose(decision.loss_weights, [2 / 3, 4 / 3])

    def test_an_unmeasured_stream_keeps_its_factor(self) -> None:
        seen = measured([4.0, 1.0, NAN], [1, 1, NAN], [30, 30, 1], losses=(1.0, 1.0, NAN))
        decision = decided(GradNorm(interval_steps=1, rate=1.0), seen, weights=[1 / 3] * 3)
        np.testing.assert_allclose(decision.loss_weights, [2 / 3, 4 / 3, 1.0])

    def test_resumed_it_knows_the_first_losses(self) -> None:
        policy, resumed = GradNorm(interval_steps=1), GradNorm(interval_steps=1)
        decided(policy, update(losses=(4.0, NAN)))
        resumed.start(mixture_of((0.5, 0.5)))
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        later = update(losses=(1.0, 2.0), step=2)
        np.testing.assert_array_equal(policy.update(later).loss_weights, resumed.update(later).loss_weights)

    def test_the_arguments(self) -> None:
        with pytest.raises(ValueError, match=r"acts_on must be 'sampling' .* or 'loss' .*, got 'both'"):
            GradNorm(acts_on="both")
        with pytest.raises(ValueError, match=r"rate must be in \[1e-09, 1\], got 0.0; 1 goes to the fixed point"):
            GradNorm(rate=0.0)
        with pytest.raises(ValueError, match="alpha must be in"):
            GradNorm(alpha=-1.0)
