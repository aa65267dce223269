import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import ODM
from mixer.policies.odm import exploration
from tests.mixer.policies.seen import NOTHING, mixture_of, seen

OWN = [0.1, 0.9]


class TestExploration:
    def test_by_hand(self) -> None:
        """K = 2: √(ln 2 / 2t) is 1/2 at t = 2 ln 2 = 1.39, and 0.0588704… at t = 100."""
        assert exploration(2, 0) == exploration(2, 1) == 0.5
        assert exploration(2, 2) == pytest.approx(0.41627730557884884, rel=1e-12)
        assert exploration(2, 100) == pytest.approx(0.05887050112577373, rel=1e-12)

    def test_a_single_stream_has_nothing_to_explore(self) -> None:
        assert exploration(1, 1) == 0.0

    @given(num_streams=st.integers(2, 1000), time=st.integers(0, 10**7))
    def test_it_falls_and_never_takes_more_than_there_is(self, num_streams: int, time: int) -> None:
        assert exploration(num_streams, time + 1) <= exploration(num_streams, time) <= 1 / num_streams


class TestPaper:
    def test_by_hand(self) -> None:
        """Rewards L/π = (3/0.75, 1/0.25) = (4, 4) at t = 3 with the shares that were drawn, not the weights."""
        policy = ODM(num_warmup_steps=0)
        assert policy.start(mixture_of(OWN)).weights.tolist() == [0.5, 0.5]
        decision = policy.update(seen(2, [3.0, 1.0], weights=[0.5, 0.5], shares=[0.75, 0.25]))
        np.testing.assert_allclose(decision.weights, [0.5, 0.5], rtol=1e-12)
        decision = policy.update(seen(3, [3.0, NOTHING], weights=[0.25, 0.75]))
        # t = 4, ε_3 and ε_4. R = 4 → (0.9 · 0.1 · 4 + 0.1 · 12)/(1 − 0.81) for the first stream alone.
        shares = np.exp(np.sqrt(np.log(2) / 6) * np.array([(0.36 + 1.2) / 0.19, 4.0]))
        explored = np.sqrt(np.log(2) / 8)
        np.testing.assert_allclose(decision.weights, (1 - 2 * explored) * shares / shares.sum() + explored, rtol=1e-12)

    def test_it_is_uniform_until_k_ln_k_and_in_the_long_run(self) -> None:
        """K ln K = 5.5 for 4 streams; at t = 10⁸ ε is 6e-5, and ε R at most 7e-4."""
        policy = ODM(num_warmup_steps=0)
        policy.start(mixture_of([0.25] * 4))
        apart = {}
        for step in (1, 4, 50, 10**8):
            weights = policy.update(seen(step, [3.0, 1.0, 2.0, 0.5])).weights
            apart[step] = float(np.ptp(weights))
        assert apart[1] < 1e-15
        assert apart[4] < 1e-15
        assert apart[50] > 0.1
        assert apart[10**8] < 1e-3

    def test_a_loss_that_is_rarely_drawn_counts_more(self) -> None:
        policy = ODM(num_warmup_steps=0)
        policy.start(mixture_of(OWN))
        decision = policy.update(seen(9, [2.0, 2.0], weights=[0.2, 0.8]))
        assert decision.weights[0] > decision.weights[1]

    def test_losses_of_a_stream_with_a_share_of_zero_are_left_out(self) -> None:
        policy = ODM(num_warmup_steps=0)
        policy.start(mixture_of(OWN))
        before = policy.state_dict()
        policy.update(seen(9, [2.0, NOTHING], weights=[0.0, 1.0]))
        assert policy.state_dict() == before


class TestCode:
    def test_by_hand(self) -> None:
        """Perplexities (3, 1): at t = 100 ε = 0.0588705, π = (1 − 2ε)·(3/4, 1/4) + ε, whatever was drawn."""
        policy = ODM("code", num_warmup_steps=0)
        policy.start(mixture_of(OWN))
        decision = policy.update(seen(99, [float(np.log(3)), 0.0], weights=[0.9, 0.1]))
        explored = 0.05887050112577373
        np.testing.assert_allclose(decision.weights, (1 - 2 * explored) * np.array([0.75, 0.25]) + explored, rtol=1e-12)

    def test_in_the_long_run_shares_go_by_perplexity(self) -> None:
        policy = ODM("code", num_warmup_steps=0)
        policy.start(mixture_of(OWN))
        decision = policy.update(seen(10**9, [float(np.log(3)), 0.0]))
        np.testing.assert_allclose(decision.weights, [0.75, 0.25], atol=1e-4)

    def test_losses_whose_exponential_overflows_or_vanishes_give_shares(self) -> None:
        policy = ODM("code", num_warmup_steps=0)
        policy.start(mixture_of(OWN))
        assert policy.update(seen(10**9, [1e4, 1.0])).weights[0] > 0.999
        policy.start(mixture_of(OWN))
        np.testing.assert_allclose(policy.update(seen(10**9, [-1e4, -1e5])).weights, [0.5, 0.5])


@pytest.mark.parametrize("form", ["paper", "code"])
class TestBoth:
    def test_own_weights_hold_through_the_warm_up_which_counts(self, form: str) -> None:
        warm, cold = ODM(form, num_warmup_steps=3), ODM(form, num_warmup_steps=0)
        assert warm.start(mixture_of(OWN)).weights.tolist() == OWN
        cold.start(mixture_of(OWN))
        for step in (1, 2):
            observation = seen(step, [3.0, 1.0])
            assert warm.update(observation).weights.tolist() == OWN
            cold.update(observation)
        last = seen(3, [3.0, 1.0])
        np.testing.assert_array_equal(warm.update(last).weights, cold.update(last).weights)

    def test_a_stream_that_left_counts_for_nothing(self, form: str) -> None:
        """The proportions of the others are those of a run without it."""
        policy, without = ODM(form, num_warmup_steps=0), ODM(form, num_warmup_steps=0)
        policy.start(mixture_of([0.2, 0.3, 0.5]))
        without.start(mixture_of([0.3 / 0.8, 0.5 / 0.8]))
        policy.update(seen(1, [300.0, 1.0, 1.0]))
        without.update(seen(1, [1.0, 1.0], weights=[1 / 3, 1 / 3]))
        for step in (2, 30):
            decision = policy.update(seen(step, [NOTHING, 3.0, 1.0], shares=[0.0, 0.5, 0.5]))
            alone = without.update(seen(step, [3.0, 1.0]))
        assert decision.weights[0] == pytest.approx(0.2)
        np.testing.assert_allclose(decision.weights[1:] / decision.weights[1:].sum(), alone.weights, rtol=1e-12)

    def test_a_stream_never_seen_counts_as_the_mean_of_the_others(self, form: str) -> None:
        policy = ODM(form, num_warmup_steps=0)
        policy.start(mixture_of([0.2, 0.3, 0.5]))
        weights = policy.update(seen(40, [NOTHING, 2.0, 1.0])).weights
        assert weights[2] < weights[0] < weights[1]

    def test_one_stream_and_none(self, form: str) -> None:
        policy = ODM(form, num_warmup_steps=0)
        policy.start(mixture_of([1.0]))
        assert policy.update(seen(7, [2.0])).weights.tolist() == [1.0]
        assert policy.update(seen(8, [NOTHING], shares=[0.0])).weights.tolist() == [1.0]

    def test_many_streams(self, form: str) -> None:
        policy = ODM(form, num_warmup_steps=0)
        policy.start(mixture_of([0.001] * 1000))
        weights = policy.update(seen(10**5, list(np.linspace(1, 9, 1000)))).weights
        assert weights.sum() == pytest.approx(1.0)
        assert weights.min() >= exploration(1000, 10**5 + 1)
        assert (np.diff(weights) > 0).all()

    def test_it_goes_on_alike_after_a_resume(self, form: str) -> None:
        policy, resumed = ODM(form, num_warmup_steps=2), ODM(form, num_warmup_steps=2)
        for made in (policy, resumed):
            made.start(mixture_of(OWN))
        for step in range(1, 4):
            policy.update(seen(step, [1.0 / step, NOTHING]))
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        observation = seen(4, [0.1, 0.2])
        np.testing.assert_array_equal(resumed.update(observation).weights, policy.update(observation).weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "both"}, "form must be 'paper' or 'code', got 'both'"),
        ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
        ({"num_warmup_steps": -1}, "num_warmup_steps must be a whole number, 0 or more, got -1"),
        ({"num_warmup_steps": 0.5}, "num_warmup_steps must be a whole number"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ODM(**arguments)
