import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import BalancedPiKE, Decision, DoGE, PiKE
from mixer.policies.gradient_statistics import signal_and_noise
from tests.mixer.policies.gradients import measured, mixture_of, unmeasured_step

NAN = np.nan
# Tenths, so that no scale makes one of them vanish.
tenths = st.integers(-50, 500).map(lambda number: number / 10)
numbers = st.lists(st.tuples(tenths, tenths, st.integers(0, 40)), min_size=1, max_size=6)


def raw(**arguments: Any) -> PiKE:
    """The equation as it stands: one measurement, nothing cut or lifted."""
    return PiKE(**{"interval_steps": 1, "decay": 0.0, "max_log_change": 100, "min_samples": 0, **arguments})


def decided(policy: PiKE, *observations: Any, weights: Sequence[float] = (0.5, 0.5)) -> np.ndarray:
    decision: Decision = policy.start(mixture_of(weights))
    for observation in observations:
        decision = policy.update(observation)
    return decision.weights


class TestPractical:
    def test_the_equation_by_hand(self) -> None:
        # b = 10: exponents 0.1·3 − 0.2/20·10 = 0.2 and 0.1·1 − 0.2/20·30 = −0.2.
        policy = raw(signal_rate=0.1, noise_rate=0.2, scale_free=False)
        weights = decided(policy, measured([3, 1], [10, 30], [5, 5]))
        np.testing.assert_allclose(weights, [1 / (1 + np.exp(-0.4)), 1 / (1 + np.exp(0.4))])

    def test_scale_free_by_hand(self) -> None:
        # Over the mean norm, 2: exponents 0.1·1.5 − 0.01·5 = 0.1 and 0.1·0.5 − 0.01·15 = −0.1.
        weights = decided(raw(signal_rate=0.1, noise_rate=0.2), measured([3, 1], [10, 30], [5, 5]))
        np.testing.assert_allclose(weights, [1 / (1 + np.exp(-0.2)), 1 / (1 + np.exp(0.2))])

    def test_steps_add_up(self) -> None:
        # Twice the exponents 0.2 and −0.2, from weights 1 : 3.
        policy = raw(signal_rate=0.1, noise_rate=0.2, scale_free=False)
        batch = measured([3, 1], [10, 30], [5, 5])
        weights = decided(policy, batch, batch, weights=(0.25, 0.75))
        np.testing.assert_allclose(weights[1] / weights[0], 3 * np.exp(-0.8))

    def test_the_larger_the_batch_the_less_noise_counts(self) -> None:
        shares = [decided(raw(), measured([1, 1], [10, 30], [b // 2, b // 2]))[1] for b in (8, 64, 512)]
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(0.5, abs=1e-2)

    def test_without_noise_rate_the_variance_is_left_out(self) -> None:
        first = decided(raw(noise_rate=0.0), measured([3, 1], [10, 30], [5, 5]))
        second = decided(raw(noise_rate=0.0), measured([3, 1], [900, 0], [5, 5]))
        np.testing.assert_array_equal(first, second)

    @given(drawn=numbers, scale=st.sampled_from([1e-200, 1e-3, 1e4, 1e290]))
    def test_units_of_the_loss_change_nothing(self, drawn: list[tuple[float, float, int]], scale: float) -> None:
        norms, variances, counts = np.array(drawn).T
        own = np.full(len(drawn), 1 / len(drawn))
        expected = decided(PiKE(1), measured(norms, variances, counts), weights=own)
        found = decided(PiKE(1), measured(scale * norms, scale * variances, counts), weights=own)
        np.testing.assert_allclose(found, expected, rtol=1e-9)

    @given(drawn=numbers, most=st.floats(0.0, 2.0), scale_free=st.booleans())
    def test_no_weight_changes_by_more_than_allowed(
        self, drawn: list[tuple[float, float, int]], most: float, scale_free: bool
    ) -> None:
        norms, variances, counts = np.array(drawn).T
        own = np.arange(1.0, len(drawn) + 1)
        own /= own.sum()
        policy = PiKE(1, max_log_change=most, min_samples=0, scale_free=scale_free)
        changes = np.log(decided(policy, measured(norms, variances, counts), weights=own) / own)
        assert np.abs(changes).max() <= most + 1e-9

    def test_the_change_is_cut_around_the_middle_stream(self) -> None:
        # Exponents 0.1·(0, 1, 10) are cut to ±0.1 around that of the second.
        policy = raw(max_log_change=0.2, scale_free=False, noise_rate=0.0)
        weights = decided(policy, measured([0, 1, 10], [0, 0, 0], [4, 4, 4]), weights=[1 / 3] * 3)
        np.testing.assert_allclose(np.log(weights / weights[1]), [-0.1, 0, 0.1], atol=1e-12)


class TestConceptual:
    def test_the_optimum_by_hand(self) -> None:
        # At right angles: β = γ = 1. λ = (−4, −1), κ = (4, 1): level −0.8, weights 3.2/4 and 0.2/1.
        policy = raw(mode="conceptual")
        np.testing.assert_allclose(decided(policy, measured([4, 1], [0, 0], [5, 5])), [0.8, 0.2])

    def test_the_constants_come_from_the_products(self) -> None:
        # c̄ = 1/(2·1) = 0.5, γ = 1.5: λ = (−4, −1), κ = (6, 1.5): (ν + 4)/6 + (ν + 1)/1.5 = 1, ν = −0.4.
        aligned = measured([4, 1], [0, 0], [5, 5], gram=[[4, 1], [1, 1]])
        np.testing.assert_allclose(decided(raw(mode="conceptual"), aligned), [0.6, 0.4])
        # c = 0.25/(4 + 1) = 0.05, β = 1 + 0.05·(−2 + 2 − 10/5) = 0.9: λ = (−3.6, −0.9), κ = (4, 1):
        # (ν + 3.6)/4 + ν + 0.9 = 1, ν = −0.64.
        conflicted = measured([4, 1], [0, 0], [5, 5], gram=[[4, -0.25], [-0.25, 1]])
        np.testing.assert_allclose(decided(raw(mode="conceptual", bound="published"), conflicted), [0.74, 0.26])
        # With two streams no mixture changes what they lose to each other: weights as without conflict.
        np.testing.assert_allclose(decided(raw(mode="conceptual"), conflicted), [0.8, 0.2])

    def test_three_streams_in_conflict_by_hand(self) -> None:
        # c = 0.5/(4 + 1) = 0.1, β = 0.9: λ = (−3.6, −0.9, −0.9), κ = (4, 1, 1): (ν + 3.6)/4 + 2 (ν + 0.9) = 1,
        # ν = −1.7/2.25, so that the others have 0.9 − 1.7/2.25 = 13/90 each.
        gram = [[4, -0.5, 0], [-0.5, 1, 0], [0, 0, 1]]
        batch = measured([4, 1, 1], [0, 0, 0], [5, 5, 5], gram=gram)
        weights = decided(raw(mode="conceptual"), batch, weights=[1 / 3] * 3)
        np.testing.assert_allclose(weights, [64 / 90, 13 / 90, 13 / 90])

    def test_given_constants_are_taken(self) -> None:
        batch = measured([4, 1], [0, 0], [5, 5])
        np.testing.assert_allclose(decided(raw(mode="conceptual", alignment=0.5), batch), [0.6, 0.4])
        published = raw(mode="conceptual", conflict=0.05, bound="published")
        np.testing.assert_allclose(decided(published, batch), [0.74, 0.26])

    def test_a_conflict_that_forbids_any_descent_keeps_the_harm_small(self) -> None:
        # β = 0: only ½ Σ w² κ is left, least at w ∝ 1/κ.
        policy = raw(mode="conceptual", conflict=0.5, bound="published")
        np.testing.assert_allclose(decided(policy, measured([4, 1], [0, 0], [5, 5])), [0.2, 0.8])

    @pytest.mark.parametrize("scale", [1e-200, 1e-3, 1e250])
    def test_units_of_the_loss_change_nothing(self, scale: float) -> None:
        norms, variances, gram = np.array([4.0, 1, 2]), np.array([9.0, 20, 30]), np.full((3, 3), -0.05)
        found = [
            decided(
                PiKE(1, "conceptual"),
                measured(factor * norms, factor * variances, [5, 5, 6], gram=factor * gram),
                weights=[1 / 3] * 3,
            )
            for factor in (1.0, scale)
        ]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-9)

    @given(drawn=numbers, scale_free=st.booleans())
    def test_weights_lie_on_the_simplex(self, drawn: list[tuple[float, float, int]], scale_free: bool) -> None:
        norms, variances, counts = np.array(drawn).T
        policy = PiKE(1, "conceptual", scale_free=scale_free)
        weights = decided(policy, measured(norms, variances, counts), weights=np.full(len(drawn), 1 / len(drawn)))
        assert weights.min() >= 0.0
        assert weights.sum() == pytest.approx(1.0)


class TestFloor:
    @pytest.mark.parametrize("mode", ["practical", "conceptual"])
    def test_each_stream_keeps_two_samples(self, mode: str) -> None:
        policy = PiKE(1, mode, signal_rate=100.0, max_log_change=50.0, decay=0.0)
        batch = measured([9, 1, 1e-6], [0, 0, 0], [20, 10, 10])
        weights = decided(policy, batch, batch, weights=[0.5, 0.25, 0.25])
        assert weights[2] == pytest.approx(2 / 40)
        assert weights.min() >= 2 / 40 - 1e-12

    def test_it_follows_the_batch_size_in_between(self) -> None:
        policy = PiKE(20, signal_rate=100.0, max_log_change=50.0)
        first = decided(policy, measured([9, 1], [0, 0], [50, 50], step=20))
        assert first[1] == pytest.approx(0.02)
        assert policy.update(unmeasured_step([5, 5], step=21)).weights[1] == pytest.approx(0.2)
        assert policy.update(unmeasured_step([1, 2], step=22)).weights.tolist() == [0.5, 0.5]
        assert policy.update(unmeasured_step([98, 2], step=23)).weights[1] == pytest.approx(0.02)

    def test_own_weights_that_leave_enough_hold_to_the_bit(self) -> None:
        own = (0.3, 0.7)
        assert decided(PiKE(1), unmeasured_step([3, 7]), weights=own).tolist() == list(own)
        assert decided(PiKE(1), weights=(0.0, 1.0)).tolist() == [0.0, 1.0]
        assert decided(PiKE(1), unmeasured_step([0, 10]), weights=(0.0, 1.0)).tolist() == [0.0, 1.0]

    @pytest.mark.parametrize("make", [PiKE, BalancedPiKE, DoGE], ids=lambda make: make.__name__)
    def test_it_counts_samples_where_weights_are_shares_of_tokens(self, make: Any) -> None:
        policy, lengths = make(interval_steps=1, min_samples=2, unit="tokens"), np.array([100.0, 1.0, 10.0])
        policy.start(mixture_of([0.02, 0.48, 0.5]))
        batch = unmeasured_step([20, 10, 10], losses=[1, 1, 1])
        weights = policy.update(replace(batch, tokens_per_sample=lengths)).weights
        in_samples = weights / lengths / (weights / lengths).sum()
        # Own weights are 1 in 2651 of the samples; the others keep their proportions.
        np.testing.assert_allclose(in_samples, [2 / 40, 38 / 40 * 480 / 530, 38 / 40 * 50 / 530])


class TestMeasurements:
    @pytest.mark.parametrize("mode", ["practical", "conceptual"])
    def test_a_stream_that_was_never_measured_keeps_its_share(self, mode: str) -> None:
        policy = raw(mode=mode)
        weights = decided(policy, measured([4, NAN, 1], [0, 0, 0], [5, 1, 5]), weights=[0.4, 0.2, 0.4])
        assert weights[0] > 0.4
        assert weights[1] == pytest.approx(0.2, abs=0.01 if mode == "practical" else 1e-12)

    @pytest.mark.parametrize("nothing", [NAN, np.inf])
    def test_a_stream_without_a_new_measurement_keeps_its_average(self, nothing: float) -> None:
        whole, part = measured([4, 1], [8, 8], [5, 5]), measured([4, nothing], [8, 8], [9, 1])
        state = self._averages(whole, part, whole)
        assert state["squared_norm"]["counts"] == state["variance"]["counts"] == [3, 2]
        assert state["squared_norm"]["values"] == pytest.approx([4.0, 1.0])

    def _averages(self, *observations: Any) -> dict[str, Any]:
        policy = PiKE(1)
        decided(policy, *observations)
        return policy.state_dict()

    def test_negative_estimates_count_in_the_average(self) -> None:
        # Averages without decay of the weights would be (−1 + 3)/2 = 1 for both; with decay 0.5: (−0.5 + 3)/1.5 = 5/3
        # for the first and (1.5 − 1)/1.5 = 1/3 for the second.
        policy = raw(decay=0.5, noise_rate=0.0, scale_free=False)
        decided(policy, measured([-1, 3], [0, 0], [5, 5]), measured([3, -1], [0, 0], [5, 5]))
        assert policy.state_dict()["squared_norm"]["values"] == pytest.approx([5 / 3, 1 / 3])

    def test_a_negative_average_is_no_signal(self) -> None:
        below, zero = (decided(raw(scale_free=False), measured([1, value], [0, 0], [5, 5])) for value in (-100.0, 0.0))
        np.testing.assert_array_equal(below, zero)

    @pytest.mark.parametrize("mode", ["practical", "conceptual"])
    @pytest.mark.parametrize(
        ("norms", "variances"),
        [([0, 0], [0, 0]), ([-1, -2], [0, 0]), ([NAN, NAN], [NAN, NAN]), ([NAN, np.inf], [1, 1])],
    )
    def test_where_nothing_was_found_the_weights_hold(
        self, norms: list[float], variances: list[float], mode: str
    ) -> None:
        weights = decided(PiKE(1, mode), measured(norms, variances, [5, 5]), weights=(0.3, 0.7))
        assert weights.tolist() == [0.3, 0.7]

    @pytest.mark.parametrize("mode", ["practical", "conceptual"])
    def test_it_decides_once_an_interval_however_often_there_are_gradients(self, mode: str) -> None:
        policy = PiKE(3, mode)
        policy.start(mixture_of([0.5, 0.5]))
        found = [policy.update(measured([4, 1], [8, 8], [5, 5], step=step)).weights[0] for step in range(1, 8)]
        assert found[0] == found[1] == 0.5
        assert found[2] == found[3] == found[4] > 0.5
        if mode == "practical":
            assert found[5] == found[6] > found[2]

    def test_a_state_of_the_other_form_is_refused(self) -> None:
        practical, conceptual = PiKE(), PiKE(mode="conceptual")
        for policy in (practical, conceptual):
            policy.start(mixture_of([0.5, 0.5]))
        with pytest.raises(ValueError, match="PiKE remembers"):
            conceptual.load_state_dict(practical.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interval_steps": 0}, "interval_steps must be a whole number, 1 or more, got 0; 1 decides after every"),
        ({"interval_steps": 2.5}, "interval_steps must be a whole number, 1 or more, got 2.5"),
        ({"mode": "both"}, "mode must be 'practical' or 'conceptual', got 'both'"),
        ({"bound": "tight"}, "bound must be 'per_stream' or 'published', got 'tight'"),
        ({"signal_rate": -1.0}, "signal_rate must be 0 or more, got -1.0"),
        ({"noise_rate": float("nan")}, "noise_rate must be 0 or more, got nan; 0 ignores the noise"),
        ({"noise_rate": float("inf")}, "noise_rate must be 0 or more, got inf"),
        ({"max_log_change": -0.1}, r"max_log_change must be in \[0, 100\], got -0.1"),
        ({"step_sharpness": 0.0}, "step_sharpness must be in .* got 0.0; it has no unit"),
        ({"conflict": 0.6}, r"conflict must be in \[0, 0.5\], got 0.6; None measures it"),
        ({"alignment": -0.1}, r"alignment must be in \[0, 1\], got -0.1; None measures it"),
        ({"min_samples": -1}, "min_samples must be a whole number, 0 or more, got -1"),
        ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PiKE(**arguments)


class QuadraticStreams:
    """Losses `½||θ − a_k − ξ||²` with noise ξ of each sample: the gradient of stream k at θ is `θ − a_k`.

    Args:
        optima: `[num_streams, dimension]`: `a_k`.
        deviations: `[num_streams]`: `σ_k`, so that `E||ξ||² = σ_k²`.
        seed: Of the samples.
    """

    def __init__(self, optima: np.ndarray, deviations: np.ndarray, seed: int):
        self.optima, self.deviations = optima, deviations
        self._random = np.random.default_rng(seed)

    def update(self, position: np.ndarray, counts: np.ndarray, step: int) -> Any:
        """Draws the samples' gradients and gives what a run would measure of them."""
        dimension = self.optima.shape[1]
        sums, squares = [], []
        for optimum, deviation, count in zip(self.optima, self.deviations, counts, strict=True):
            noise = self._random.normal(size=(count, dimension)) * deviation / np.sqrt(dimension)
            samples = position - optimum - noise
            sums.append(samples.sum(axis=0))
            squares.append(float((samples**2).sum()))
        total = np.array(sums)
        signal, noise = signal_and_noise((total**2).sum(axis=1), np.array(squares), counts.astype(float), counts)
        means = total / counts[:, None]
        return measured(signal, noise, counts, gram=means @ means.T, step=step)


def best_on_a_grid(norms: np.ndarray, variances: np.ndarray, batch_size: int, beta: float, gamma: float) -> np.ndarray:
    """The minimum of the bound at `ηL = 1` among mixtures of three streams in steps of 1/500."""
    first, second = np.meshgrid(np.arange(501), np.arange(501), indexing="ij")
    inside = first + second <= 500
    mixtures = np.stack([first[inside], second[inside], 500 - first[inside] - second[inside]], axis=1) / 500
    bound = mixtures @ (-beta * norms + variances / (2 * batch_size)) + mixtures**2 @ (gamma * norms) / 2
    return mixtures[bound.argmin()]


class TestKnownGradients:
    OPTIMA = np.array([[3.0, 0.5, 0, 0], [0.3, 1.5, 0.5, 0], [0.3, 0.2, 0, 1.0]])
    DEVIATIONS = np.array([2.0, 5.0, 1.0])

    def test_estimates_and_weights_converge_to_the_truth(self) -> None:
        streams = QuadraticStreams(self.OPTIMA, self.DEVIATIONS, seed=0)
        policy = PiKE(1, "conceptual", decay=0.9995)
        weights = policy.start(mixture_of([1 / 3] * 3)).weights
        for step in range(1, 3001):
            counts = np.maximum(2, np.round(48 * weights)).astype(np.int64)
            weights = policy.update(streams.update(np.zeros(4), counts, step)).weights
        norms = (self.OPTIMA**2).sum(axis=1)
        averages = policy.state_dict()
        np.testing.assert_allclose(averages["squared_norm"]["values"], norms, rtol=0.03)
        np.testing.assert_allclose(averages["variance"]["values"], self.DEVIATIONS**2, rtol=0.03)
        cosines = (self.OPTIMA @ self.OPTIMA.T / np.sqrt(np.outer(norms, norms)))[~np.eye(3, dtype=bool)]
        assert cosines.min() > 0  # no conflict: β = 1
        best = best_on_a_grid(norms, self.DEVIATIONS**2, int(counts.sum()), 1.0, 1 + 2 * cosines.max())
        np.testing.assert_allclose(weights, best, atol=0.02)
        without_noise = best_on_a_grid(norms, np.zeros(3), int(counts.sum()), 1.0, 1 + 2 * cosines.max())
        assert np.abs(best - without_noise).max() > 0.03  # the variance counts

    @pytest.mark.parametrize("mode", ["practical", "conceptual"])
    def test_a_stream_that_is_learned_gives_its_samples_to_the_others(self, mode: str) -> None:
        streams = QuadraticStreams(np.diag([1.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.5]), seed=1)
        policy = PiKE(1, mode)
        weights = policy.start(mixture_of([1 / 3] * 3)).weights
        for step in range(1, 41):
            counts = np.maximum(2, np.round(48 * weights)).astype(np.int64)
            # The first stream's gradient is a tenth of the others'.
            weights = policy.update(streams.update(np.array([0.9, 0.0, 0.0]), counts, step)).weights
        assert weights[0] == weights.min() < 0.25

    def test_the_published_bound_turns_round_when_a_stream_becomes_rare(self) -> None:
        # The same problem, in which the first stream's small gradient is against the others': c about 0.05.
        streams = QuadraticStreams(np.diag([1.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.5]), seed=1)
        policy = PiKE(1, "conceptual", bound="published")
        weights, most = policy.start(mixture_of([1 / 3] * 3)).weights, set()
        for step in range(1, 41):
            counts = np.maximum(2, np.round(48 * weights)).astype(np.int64)
            weights = policy.update(streams.update(np.array([0.9, 0.0, 0.0]), counts, step)).weights
            most.add(bool(weights[0] > 0.5))
        assert True in most  # the learned stream has most of the batch: why it is not the default

    def test_descent_by_the_decided_mixture_ends_lower_where_one_stream_is_noise(self) -> None:
        ends = {}
        for name in ("adaptive", "uniform"):
            streams = QuadraticStreams(np.array([[3.0, 3.0], [2.8, 3.0], [3.0, 2.8]]), np.array([0.5, 0.5, 30.0]), 2)
            policy = PiKE(5, signal_rate=0.3, noise_rate=0.3)
            weights, position = policy.start(mixture_of([1 / 3] * 3)).weights, np.zeros(2)
            losses = []
            for step in range(1, 301):
                counts = np.maximum(2, np.round(48 * weights)).astype(np.int64)
                batch = streams.update(position, counts, step)
                decision = policy.update(batch)
                if name == "adaptive":
                    weights = decision.weights
                noise = streams._random.normal(size=(3, 2)) * (streams.deviations / np.sqrt(2 * counts))[:, None]
                position = position - 0.1 * (counts / counts.sum()) @ (position - streams.optima - noise)
                losses.append(0.5 * float(((position - streams.optima) ** 2).sum(axis=1).mean()))
            ends[name] = np.mean(losses[-150:])
        assert ends["adaptive"] < ends["uniform"]


def test_a_saved_state_is_plain_numbers() -> None:
    policy = PiKE(1, "conceptual")
    decided(policy, measured([1e300, NAN], [NAN, 5e-324], [5, 0], gram=[[np.inf, NAN], [NAN, -1e300]]))
    json.dumps(policy.state_dict(), allow_nan=False)


class TestStreamsThatComeAndGo:
    def test_the_rest_of_an_epoch_does_not_even_the_weights_out(self) -> None:
        policy = raw(min_samples=2)
        rest = replace(measured([9, 1], [1, 1], [3, 1]), batch_size=100)
        whole = replace(measured([9, 1], [1, 1], [75, 25]), batch_size=100)
        np.testing.assert_allclose(decided(policy, rest), decided(policy, whole))

    def test_one_that_left_holds_nobody_back(self) -> None:
        shares = np.array([0.0, 0.5, 0.5])
        first, second = 0.9 * np.ones(2), np.zeros(2)
        policy = PiKE(interval_steps=1, decay=0.0)
        policy.start(mixture_of([1 / 3, 1 / 3, 1 / 3]))
        for step in range(100):
            active = shares if step > 50 else np.full(3, 1 / 3)
            counts = [20, 20, 20] if step <= 50 else [0, 30, 30]
            norms = [80, 1, 3] if step <= 50 else [np.nan, 1, 3]
            weights = policy.update(
                replace(measured(norms, [1, 1, 1], counts), shares=active, active=active > 0)
            ).weights
            if step == 50:
                first = weights[1:] / weights[1:].sum()
        second = weights[1:] / weights[1:].sum()
        assert first[1] < 0.6
        np.testing.assert_allclose(second, [2 / 60, 58 / 60])
        assert weights[0] == pytest.approx(1 / 3)

    def test_one_of_weight_0_is_there(self) -> None:
        policy = PiKE(interval_steps=1, mode="conceptual", min_samples=0, decay=0.0)
        weights = policy.start(mixture_of([0.5, 0.3, 0.2])).weights
        for step in range(1, 9):
            seen = measured([9, 1, 1], [1, 9e9, 9e9], [30, 0, 0], step=step)
            weights = policy.update(replace(seen, weights=weights, shares=weights)).weights
            assert weights.tolist() == [1.0, 0.0, 0.0]

    def test_one_without_a_weight_of_its_own_has_no_least_share(self) -> None:
        policy = PiKE(interval_steps=1, min_samples=2)
        policy.start(mixture_of([0.5, 0.5, 0.0]))
        assert policy.update(measured([9, 1, np.nan], [1, 1, np.nan], [30, 30, 0])).weights[2] == 0.0

    def test_where_all_that_have_a_weight_left_the_own_weights_rule(self) -> None:
        policy = PiKE(interval_steps=1, mode="conceptual", min_samples=0, decay=0.0)
        policy.start(mixture_of([0.5, 0.3, 0.2]))
        policy.update(measured([9, 1, 1], [1, 9e9, 9e9], [30, 0, 0]))
        left = replace(unmeasured_step([60, 0, 0], step=2), active=np.array([False, True, True]))
        np.testing.assert_allclose(policy.update(left).weights, [0.5, 0.3, 0.2])

    @pytest.mark.parametrize("mode", ["practical", "conceptual"])
    def test_one_that_was_never_measured_keeps_its_share(self, mode: Any) -> None:
        policy = PiKE(interval_steps=1, decay=0.0, mode=mode, min_samples=0)
        policy.start(mixture_of([0.2, 0.4, 0.4]))
        for _ in range(50):
            weights = policy.update(measured([np.nan, 1, 3], [np.nan, 1, 1], [0, 30, 30])).weights
        assert weights[0] == pytest.approx(0.2)
        assert weights[2] > weights[1]

    def test_one_that_enters_begins_with_its_own_weight(self) -> None:
        policy = PiKE(interval_steps=1, decay=0.0)
        policy.start(mixture_of([0.5, 0.25, 0.25]))
        for _ in range(50):
            seen = measured([np.nan, 1, 3], [np.nan, 1, 1], [0, 30, 30])
            policy.update(replace(seen, active=np.array([False, True, True])))
        entered = unmeasured_step([0, 30, 30], step=51)  # it is there in the next step
        assert policy.update(entered).weights[0] == pytest.approx(0.5, rel=0.02)  # the others have their least
