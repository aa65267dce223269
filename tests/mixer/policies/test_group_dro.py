import numpy as np

from mixer.policies import GroupDRO
from tests.mixer.policies.observed import NAN, led, mixture, observe, weights_of

LN3 = float(np.log(3))
THIRDS = [1 / 3] * 3


class TestSampling:
    def test_by_hand(self) -> None:
        """η = 1/2. First (e^{ln 3}, e^0)/4 = (3/4, 1/4), then the second stream's 3 makes them equal."""
        course = [observe(1, [2 * LN3, 0.0]), observe(2, [0.0, 2 * LN3])]
        decisions = led(GroupDRO(0.5, acts_on="sampling"), course, [0.1, 0.9])
        expected = [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]]
        np.testing.assert_allclose([decision.weights for decision in decisions], expected, rtol=1e-14)
        assert decisions[-1].loss_weights is None

    def test_a_stream_without_a_sample_counts_with_its_last_loss(self) -> None:
        policy, course = GroupDRO(0.5, acts_on="sampling"), [observe(2, [later, 2.5]) for later in (NAN, 1.0)]
        found, expected = (weights_of(policy, observe(1, [1.0, 2.0]), last) for last in course)
        np.testing.assert_array_equal(found, expected)

    def test_a_stream_that_never_had_a_loss_keeps_its_share(self) -> None:
        """Of 1/3 each the other two share 2/3: 3 : 1, so 1/2 and 1/6."""
        found = weights_of(GroupDRO(1.0, acts_on="sampling"), observe(1, [NAN, LN3, 0.0]), own=[0.2, 0.2, 0.6])
        np.testing.assert_allclose(found, [1 / 3, 1 / 2, 1 / 6], rtol=1e-14)

    def test_it_finds_the_equilibrium_of_the_game(self) -> None:
        """Losses fall the more a stream is trained: as L = (2(1 − α₁), 1 − α₂).

        The worst loss is least where both are alike: 2(1 − α₁) = 1 − α₂ = α₁, so α₁ = 2/3.
        """
        policy = GroupDRO(0.1, acts_on="sampling")
        weights = policy.start(mixture([0.5, 0.5])).weights
        for step in range(1, 400):
            weights = policy.update(observe(step, [2 * (1 - weights[0]), 1 - weights[1]])).weights
        np.testing.assert_allclose(weights, [2 / 3, 1 / 3], atol=1e-6)

    def test_a_stream_without_a_weight_of_its_own_takes_no_part(self) -> None:
        first, decision = led(GroupDRO(1.0, 0.1, "sampling"), [observe(1, [LN3, 99.0, 0.0])], [0.3, 0.0, 0.7])
        assert first.weights.tolist() == [0.5, 0.0, 0.5]
        np.testing.assert_allclose(decision.weights, [0.9 * 0.75 + 0.05, 0.0, 0.9 * 0.25 + 0.05], rtol=1e-14)


class TestLossWeights:
    def test_the_expected_gradient_is_that_of_the_weighed_losses(self) -> None:
        """A sample of stream k counts α_k/p_k: the p-weighted mean of factors times losses is Σ α_k L_k."""
        own, losses = np.array([0.1, 0.3, 0.6]), np.array([1.0, 2.0, 3.0])
        first, decision = led(GroupDRO(0.5), [observe(1, losses.tolist())], own.tolist())
        np.testing.assert_allclose(own * first.loss_weights, THIRDS, rtol=1e-14)
        assert decision.weights.tolist() == own.tolist()
        expected = np.exp(0.5 * losses) / np.exp(0.5 * losses).sum()
        np.testing.assert_allclose(own * decision.loss_weights, expected, rtol=1e-14)

    def test_when_the_stream_that_has_everything_leaves_the_others_go_by_what_they_have_among_them(self) -> None:
        policy, resumed, own = GroupDRO(1.0), GroupDRO(1.0), [0.2, 0.2, 0.6]
        before = led(policy, [observe(1, [2000.0, 900.0 + LN3, 900.0])], own)[-1]
        np.testing.assert_allclose(own * before.loss_weights, [1.0, 0.0, 0.0], atol=1e-300)
        resumed.start(mixture(own))
        resumed.load_state_dict(policy.state_dict())
        for made in (policy, resumed):
            after = made.update(observe(2, [NAN, LN3, 0.0], shares=[0.0, 0.25, 0.75]))
            np.testing.assert_allclose([0.25, 0.75] * after.loss_weights[1:], [0.9, 0.1], rtol=1e-10)
