from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies import ODM
from mixer.policies.odm import exploration
from tests.mixer.policies.observed import NAN, led, observe, weights_of

OWN, LN3 = [0.1, 0.9], float(np.log(3))


class TestExploration:
    def test_by_hand(self) -> None:
        """K = 2: √(ln 2 / 2t) is 1/2 at t = 2 ln 2 = 1.39, and 0.0588704… at t = 100."""
        assert exploration(2, 0) == exploration(2, 1) == 0.5
        assert exploration(2, 2) == pytest.approx(0.41627730557884884, rel=1e-12)
        assert exploration(2, 100) == pytest.approx(0.05887050112577373, rel=1e-12)
        assert exploration(1, 1) == 0.0  # a single stream has nothing to explore

    @given(num_streams=st.integers(2, 1000), time=st.integers(0, 10**7))
    def test_it_falls_and_never_takes_more_than_there_is(self, num_streams: int, time: int) -> None:
        assert exploration(num_streams, time + 1) <= exploration(num_streams, time) <= 1 / num_streams


class TestPaper:
    def test_by_hand(self) -> None:
        """Rewards L/π = (3/0.75, 1/0.25) = (4, 4) at t = 3 with the shares that were drawn, not the weights."""
        course = [observe(2, [3.0, 1.0], weights=[0.5, 0.5], shares=[0.75, 0.25])]
        course += [observe(3, [3.0, NAN], weights=[0.25, 0.75])]
        first, second, third = led(ODM(num_warmup_steps=0), course, OWN)
        np.testing.assert_allclose([first.weights, second.weights], 0.5, rtol=1e-12)
        # t = 4, ε_3 and ε_4. R = 4 → (0.9 · 0.1 · 4 + 0.1 · 12)/(1 − 0.81) for the first stream alone.
        shares = np.exp(np.sqrt(np.log(2) / 6) * np.array([(0.36 + 1.2) / 0.19, 4.0]))
        explored = np.sqrt(np.log(2) / 8)
        np.testing.assert_allclose(third.weights, (1 - 2 * explored) * shares / shares.sum() + explored, rtol=1e-12)

    def test_it_is_uniform_until_k_ln_k_and_in_the_long_run(self) -> None:
        """K ln K = 5.5 for 4 streams; at t = 10⁸ ε is 6e-5, and ε R at most 7e-4."""
        course = [observe(step, [3.0, 1.0, 2.0, 0.5]) for step in (1, 4, 50, 10**8)]
        apart = [np.ptp(decision.weights) for decision in led(ODM(num_warmup_steps=0), course, [0.25] * 4)]
        assert max(apart[:3]) < 1e-15
        assert apart[3] > 0.1
        assert apart[4] < 1e-3

    def test_a_loss_that_is_rarely_drawn_counts_more_and_one_that_is_never_drawn_nothing(self) -> None:
        rare, policy = observe(9, [2.0, 2.0], weights=[0.2, 0.8]), ODM(num_warmup_steps=0)
        weights = weights_of(policy, rare, own=OWN)
        assert weights[0] > weights[1]
        before = policy.state_dict()
        policy.update(observe(9, [2.0, NAN], weights=[0.0, 1.0]))
        assert policy.state_dict() == before


@pytest.mark.parametrize(
    ("step", "losses", "expected", "tolerance"),
    [
        # Perplexities (3, 1): at t = 100 ε = 0.0588705, π = (1 − 2ε)·(3/4, 1/4) + ε, whatever was drawn.
        (99, [LN3, 0.0], (1 - 2 * 0.05887050112577373) * np.array([0.75, 0.25]) + 0.05887050112577373, 1e-12),
        (10**9, [LN3, 0.0], [0.75, 0.25], 1e-4),
        # Losses whose exponential overflows or vanishes.
        (10**9, [1e4, 1.0], [1.0, 0.0], 1e-3),
        (10**9, [-1e4, -1e5], [0.5, 0.5], 1e-7),
    ],
)
def test_the_form_of_the_code_by_hand(step: int, losses: list[float], expected: Any, tolerance: float) -> None:
    found = weights_of(ODM("code", num_warmup_steps=0), observe(step, losses, weights=[0.9, 0.1]), own=OWN)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("form", ["paper", "code"])
class TestBoth:
    def test_own_weights_hold_through_the_warm_up_which_counts(self, form: Any) -> None:
        course = [observe(step, [3.0, 1.0]) for step in (1, 2, 3)]
        *warm, last = led(ODM(form, num_warmup_steps=3), course, OWN)
        assert [decision.weights.tolist() for decision in warm] == [OWN] * 3
        np.testing.assert_array_equal(last.weights, weights_of(ODM(form, num_warmup_steps=0), *course, own=OWN))

    def test_a_stream_that_left_counts_for_nothing(self, form: Any) -> None:
        """The proportions of the others are those of a run without it."""
        gone = [observe(step, [NAN, 3.0, 1.0], shares=[0.0, 0.5, 0.5]) for step in (2, 30)]
        left = [observe(1, [300.0, 1.0, 1.0]), *gone]
        without = [observe(1, [1.0, 1.0], weights=[1 / 3, 1 / 3]), observe(2, [3.0, 1.0]), observe(30, [3.0, 1.0])]
        weights = weights_of(ODM(form, num_warmup_steps=0), *left, own=[0.2, 0.3, 0.5])
        alone = weights_of(ODM(form, num_warmup_steps=0), *without, own=[0.3 / 0.8, 0.5 / 0.8])
        assert weights[0] == pytest.approx(0.2)
        np.testing.assert_allclose(weights[1:] / weights[1:].sum(), alone, rtol=1e-12)

    def test_a_stream_never_seen_counts_as_the_mean_of_the_others(self, form: Any) -> None:
        weights = weights_of(ODM(form, num_warmup_steps=0), observe(40, [NAN, 2.0, 1.0]), own=[0.2, 0.3, 0.5])
        assert weights[2] < weights[0] < weights[1]
