import json

import numpy as np
import pytest

from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import GroupDRO
from tests.mixer.policies.seen import NOTHING, mixture_of, seen

LN3 = float(np.log(3))


def alphas(policy: GroupDRO) -> list[float]:
    return np.exp(policy.state_dict()["alpha"]["logs"]).tolist()


class TestSampling:
    def test_by_hand(self) -> None:
        """η = 1/2. First (e^{ln 3}, e^0)/4 = (3/4, 1/4), then the second stream's 3 makes them equal."""
        policy = GroupDRO(0.5, acts_on="sampling")
        assert policy.start(mixture_of([0.1, 0.9])).weights.tolist() == [0.5, 0.5]
        first = policy.update(seen(1, [2 * LN3, 0.0]))
        np.testing.assert_allclose(first.weights, [0.75, 0.25], rtol=1e-14)
        second = policy.update(seen(2, [0.0, 2 * LN3]))
        np.testing.assert_allclose(second.weights, [0.5, 0.5], rtol=1e-14)
        assert second.loss_weights is None

    def test_a_stream_without_a_sample_counts_with_its_last_loss(self) -> None:
        drawn, not_drawn = (GroupDRO(0.5, acts_on="sampling") for _ in range(2))
        for policy, later in ((drawn, 1.0), (not_drawn, NOTHING)):
            policy.start(mixture_of([0.5, 0.5]))
            policy.update(seen(1, [1.0, 2.0]))
            policy.update(seen(2, [later, 2.5]))
        assert alphas(drawn) == alphas(not_drawn)

    def test_a_stream_that_never_had_a_loss_keeps_its_share(self) -> None:
        """Of 1/3 each the other two share 2/3: 3 : 1, so 1/2 and 1/6."""
        policy = GroupDRO(1.0, acts_on="sampling")
        policy.start(mixture_of([0.2, 0.2, 0.6]))
        decision = policy.update(seen(1, [NOTHING, LN3, 0.0]))
        np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 2, 1 / 6], rtol=1e-14)

    def test_a_stream_that_left_keeps_its_share_whatever_its_last_loss(self) -> None:
        policy = GroupDRO(1.0, acts_on="sampling")
        policy.start(mixture_of([0.2, 0.2, 0.6]))
        before = policy.update(seen(1, [50.0, 1.0, 1.0])).weights[0]
        for step in range(2, 20):
            decision = policy.update(seen(step, [NOTHING, 1.0, 9.0], shares=[0.0, 0.5, 0.5]))
        assert decision.weights[0] == pytest.approx(before, rel=1e-12)
        assert decision.weights[2] > 1e6 * decision.weights[1]

    def test_a_step_without_losses_changes_nothing(self) -> None:
        policy = GroupDRO(1.0)
        policy.start(mixture_of([0.5, 0.5]))
        policy.update(seen(1, [1.0, 2.0]))
        before = policy.state_dict()
        policy.update(seen(2, [NOTHING, np.inf]))
        assert policy.state_dict() == before

    def test_it_finds_the_equilibrium_of_the_game(self) -> None:
        """Losses fall the more a stream is trained: as L = (2(1 − α₁), 1 − α₂).

        The worst loss is least where both are alike: 2(1 − α₁) = 1 − α₂ = α₁, so α₁ = 2/3.
        """
        policy = GroupDRO(0.1, acts_on="sampling")
        weights = policy.start(mixture_of([0.5, 0.5])).weights
        for step in range(1, 400):
            weights = policy.update(seen(step, [2 * (1 - weights[0]), 1 - weights[1]])).weights
        np.testing.assert_allclose(weights, [2 / 3, 1 / 3], atol=1e-6)

    def test_smoothing_brings_a_lost_stream_back(self) -> None:
        policy = GroupDRO(1.0, 0.1, "sampling")
        policy.start(mixture_of([0.5, 0.5]))
        assert policy.update(seen(1, [1e5, 0.0])).weights[1] == pytest.approx(0.05)
        for step in range(2, 5):
            decision = policy.update(seen(step, [0.0, 10.0]))
        assert decision.weights[1] == pytest.approx(0.95, rel=1e-3)

    def test_a_stream_without_a_weight_of_its_own_takes_no_part(self) -> None:
        policy = GroupDRO(1.0, 0.1, "sampling")
        assert policy.start(mixture_of([0.3, 0.0, 0.7])).weights.tolist() == [0.5, 0.0, 0.5]
        decision = policy.update(seen(1, [LN3, 99.0, 0.0]))
        np.testing.assert_allclose(decision.weights, [0.9 * 0.75 + 0.05, 0.0, 0.9 * 0.25 + 0.05], rtol=1e-14)

    def test_when_the_one_that_has_everything_ends_the_run_goes_on_with_the_others(self) -> None:
        """Without smoothing: b and c are at e^-1000 and e^-1000/3 of a when a ends, and go on as 3 : 1."""
        streams = [Stream(name, [0] * size, max_epochs=1) for name, size in (("a", 400), ("b", 10**4), ("c", 10**4))]
        planner, policy = Planner(streams, seed=0), GroupDRO(1.0, acts_on="sampling")
        weights, rows = policy.start(mixture_of([1 / 3] * 3)).weights, []
        for step in range(1, 31):
            shares, available = planner.shares(weights / weights.sum(), 0.0)
            counts, _ = planner.draw(shares, available, 40, step - 1)
            losses = [1001.0, 1.0 + LN3 * (step == 1), 1.0] if shares[0] > 0 else [NOTHING, 2.0, 2.0]
            weights = policy.update(seen(step, losses, weights, shares, counts.tolist())).weights
            rows.append(counts.tolist())
        assert rows[1:9] == [[40, 0, 0]] * 8
        assert rows[15:] == [[0, 30, 10]] * 15

    def test_many_streams(self) -> None:
        policy = GroupDRO(1.0, 0.5, "sampling")
        policy.start(mixture_of([0.001] * 1000))
        weights = policy.update(seen(1, [50.0] + [0.0] * 999)).weights
        assert weights[0] == pytest.approx(0.5005)
        assert weights[1:].min() == pytest.approx(0.0005)


class TestLossWeights:
    def test_the_expected_gradient_is_that_of_the_weighed_losses(self) -> None:
        """A sample of stream k counts α_k/p_k: the p-weighted mean of factors times losses is Σ α_k L_k."""
        own, losses = np.array([0.1, 0.3, 0.6]), np.array([1.0, 2.0, 3.0])
        policy = GroupDRO(0.5)
        first = policy.start(mixture_of(own.tolist()))
        np.testing.assert_allclose(own * first.loss_weights, [1 / 3] * 3, rtol=1e-14)
        decision = policy.update(seen(1, losses.tolist()))
        alpha = np.exp(0.5 * losses) / np.exp(0.5 * losses).sum()
        assert decision.weights.tolist() == own.tolist()
        np.testing.assert_allclose(own * decision.loss_weights, alpha, rtol=1e-14)

    def test_among_streams_that_are_there_the_mean_factor_is_one(self) -> None:
        policy = GroupDRO(0.5)
        policy.start(mixture_of([0.1, 0.3, 0.6]))
        decision = policy.update(seen(1, [NOTHING, 2.0, 3.0], shares=[0.0, 1 / 3, 2 / 3]))
        factors = decision.loss_weights[1:]
        assert np.array([1 / 3, 2 / 3]) @ factors == pytest.approx(1.0, rel=1e-14)
        assert factors[1] * 2 / factors[0] == pytest.approx(np.exp(0.5), rel=1e-14)

    def test_when_the_stream_that_has_everything_leaves_the_others_go_by_what_they_have_among_them(self) -> None:
        own = np.array([0.2, 0.2, 0.6])
        policy, resumed = GroupDRO(1.0), GroupDRO(1.0)
        for made in (policy, resumed):
            made.start(mixture_of(own.tolist()))
        before = policy.update(seen(1, [2000.0, 900.0 + LN3, 900.0]))
        np.testing.assert_allclose(own * before.loss_weights, [1.0, 0.0, 0.0], atol=1e-300)
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        for made in (policy, resumed):
            after = made.update(seen(2, [NOTHING, LN3, 0.0], shares=[0.0, 0.25, 0.75]))
            np.testing.assert_allclose([0.25, 0.75] * after.loss_weights[1:], [0.9, 0.1], rtol=1e-10)
        assert resumed.state_dict() == policy.state_dict()

    def test_a_stream_without_a_weight_takes_no_part_of_the_mean(self) -> None:
        policy = GroupDRO(1.0)
        assert policy.start(mixture_of([0.5, 0.5, 0.0])).loss_weights.tolist() == [1.0, 1.0, 1.0]
        assert policy.update(seen(1, [1.0, 1.0, 9.0])).loss_weights.tolist() == [1.0, 1.0, 1.0]

    def test_a_stream_with_a_weight_of_zero_has_a_factor_that_is_a_number(self) -> None:
        policy = GroupDRO(0.5)
        factors = policy.start(mixture_of([0.0, 1.0])).loss_weights
        assert np.isfinite(factors).all()

    def test_they_go_on_alike_after_a_resume(self) -> None:
        policy, resumed = GroupDRO(0.5, 0.01), GroupDRO(0.5, 0.01)
        for made in (policy, resumed):
            made.start(mixture_of([0.2, 0.8]))
        policy.update(seen(1, [0.3, NOTHING]))
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        for step in range(2, 6):
            observation = seen(step, [NOTHING, 0.7 / step])
            expected, found = policy.update(observation), resumed.update(observation)
            np.testing.assert_array_equal(found.loss_weights, expected.loss_weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_size": -1.0}, "step_size must be 0 or more, got -1.0"),
        ({"step_size": float("nan")}, "step_size must be 0 or more, got nan"),
        ({"step_size": float("inf")}, "step_size must be 0 or more, got inf"),
        ({"smoothing": 1.1}, r"smoothing must be in \[0, 1\], got 1.1"),
        ({"acts_on": "both"}, r"acts_on must be 'sampling' .* or 'loss' .*, got 'both'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupDRO(**arguments)
