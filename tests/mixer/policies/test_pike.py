import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies import BalancedPiKE, DoGE, PiKE
from tests.mixer.policies.observed import NAN, led, measured, observe, weights_of
from tests.refusals import refused

# Tenths, so that no scale makes one of them vanish.
tenths = st.integers(-50, 500).map(lambda number: number / 10)
numbers = st.lists(st.tuples(tenths, tenths, st.integers(0, 40)), min_size=1, max_size=6)
both = pytest.mark.parametrize("mode", ["practical", "conceptual"])
THIRDS = (1 / 3, 1 / 3, 1 / 3)


def raw(**arguments: Any) -> PiKE:
    """The equation as it stands: one measurement, nothing cut or lifted."""
    return PiKE(**{"interval_steps": 1, "decay": 0.0, "max_log_change": 100, "min_samples": 0, **arguments})


class TestPractical:
    @pytest.mark.parametrize(
        ("arguments", "own", "steps", "exponent"),
        [
            # b = 10: exponents 0.1·3 − 0.2/20·10 = 0.2 and 0.1·1 − 0.2/20·30 = −0.2.
            ({"scale_free": False}, (0.5, 0.5), 1, 0.4),
            # Twice, from weights 1 : 3.
            ({"scale_free": False}, (0.25, 0.75), 2, 0.8 - np.log(3)),
            # Cut to ±0.1 around the middle.
            ({"scale_free": False, "max_log_change": 0.2}, (0.5, 0.5), 1, 0.2),
            # Over the mean norm, 2: exponents 0.1·1.5 − 0.01·5 = 0.1 and 0.1·0.5 − 0.01·15 = −0.1.
            ({}, (0.5, 0.5), 1, 0.2),
            # The variance is left out: 0.1·3 and 0.1·1.
            ({"scale_free": False, "noise_rate": 0.0}, (0.5, 0.5), 1, 0.2),
        ],
    )
    def test_the_equation_by_hand(self, arguments: Any, own: Any, steps: int, exponent: float) -> None:
        policy = raw(**{"signal_rate": 0.1, "noise_rate": 0.2, **arguments})
        weights = weights_of(policy, *[measured([3, 1], [10, 30], [5, 5])] * steps, own=own)
        np.testing.assert_allclose(np.log(weights[0] / weights[1]), exponent)

    @given(drawn=numbers, most=st.floats(0.0, 2.0), scale_free=st.booleans())
    def test_no_weight_changes_by_more_than_allowed(self, drawn: Any, most: float, scale_free: bool) -> None:
        own = np.arange(1.0, len(drawn) + 1) / np.arange(1.0, len(drawn) + 1).sum()
        policy = PiKE(1, max_log_change=most, min_samples=0, scale_free=scale_free)
        changes = np.log(weights_of(policy, measured(*np.array(drawn).T), own=own.tolist()) / own)
        assert np.abs(changes).max() <= most + 1e-9


class TestConceptual:
    @pytest.mark.parametrize(
        ("arguments", "product", "expected"),
        [
            # At right angles: β = γ = 1. λ = (−4, −1), κ = (4, 1): level −0.8, weights 3.2/4 and 0.2/1.
            ({}, 0.0, 0.8),
            # c̄ = 1/(2·1) = 0.5, γ = 1.5: λ = (−4, −1), κ = (6, 1.5): (ν + 4)/6 + (ν + 1)/1.5 = 1, ν = −0.4.
            ({}, 1.0, 0.6),
            ({"alignment": 0.5}, 0.0, 0.6),
            # c = 0.25/(4 + 1) = 0.05, β = 1 + 0.05·(−2 + 2 − 10/5) = 0.9: λ = (−3.6, −0.9), κ = (4, 1):
            # (ν + 3.6)/4 + ν + 0.9 = 1, ν = −0.64.
            ({"bound": "published"}, -0.25, 0.74),
            ({"bound": "published", "conflict": 0.05}, 0.0, 0.74),
            # With two streams no mixture changes what they lose to each other: weights as without conflict.
            ({}, -0.25, 0.8),
            # A conflict that forbids any descent, β = 0: only ½ Σ w² κ is left, least at w ∝ 1/κ.
            ({"bound": "published", "conflict": 0.5}, 0.0, 0.2),
        ],
    )
    def test_by_hand(self, arguments: Any, product: float, expected: float) -> None:
        batch = measured([4, 1], [0, 0], [5, 5], [[4, product], [product, 1]])
        np.testing.assert_allclose(weights_of(raw(mode="conceptual", **arguments), batch), [expected, 1 - expected])

    def test_three_streams_in_conflict_by_hand(self) -> None:
        # c = 0.5/(4 + 1) = 0.1, β = 0.9: λ = (−3.6, −0.9, −0.9), κ = (4, 1, 1): (ν + 3.6)/4 + 2 (ν + 0.9) = 1,
        # ν = −1.7/2.25, so that the others have 0.9 − 1.7/2.25 = 13/90 each.
        batch = measured([4, 1, 1], [0, 0, 0], [5, 5, 5], [[4, -0.5, 0], [-0.5, 1, 0], [0, 0, 1]])
        np.testing.assert_allclose(weights_of(raw(mode="conceptual"), batch, own=THIRDS), [64 / 90, 13 / 90, 13 / 90])


@both
@given(drawn=numbers, scale=st.sampled_from([1e-200, 1e-3, 1e4, 1e290]))
def test_units_of_the_loss_change_nothing(mode: Any, drawn: Any, scale: float) -> None:
    norms, variances, counts = np.array(drawn).T
    found, expected = (
        weights_of(PiKE(1, mode), measured(unit * norms, unit * variances, counts), own=[1.0] * len(drawn))
        for unit in (scale, 1.0)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6 if mode == "conceptual" else 1e-9)


class TestLeastSamples:
    @both
    def test_each_stream_keeps_two_samples(self, mode: Any) -> None:
        policy, batch = raw(mode=mode, signal_rate=100.0, min_samples=2), measured([9, 1, 1e-6], [0] * 3, [20, 10, 10])
        weights = weights_of(policy, batch, batch, own=(0.5, 0.25, 0.25))
        assert weights[2] == pytest.approx(2 / 40)
        assert weights.min() >= 2 / 40 - 1e-12

    def test_they_follow_the_batch_size_in_between(self) -> None:
        course = [measured([9, 1], [0, 0], [50, 50], step=20)]
        course += [observe(21 + k, counts=counts) for k, counts in enumerate(([5, 5], [1, 2], [98, 2]))]
        shares = [made.weights[1] for made in led(PiKE(20, signal_rate=100.0, max_log_change=50.0), course)[1:]]
        assert shares == pytest.approx([0.02, 0.2, 0.5, 0.02])

    def test_own_weights_that_leave_enough_hold_to_the_bit(self) -> None:
        assert weights_of(PiKE(1), observe(1, counts=[3, 7]), own=(0.3, 0.7)).tolist() == [0.3, 0.7]
        assert weights_of(PiKE(1), observe(1, counts=[0, 10]), own=(0.0, 1.0)).tolist() == [0.0, 1.0]
        unmeasured = measured([9, 1, NAN], [1, 1, NAN], [30, 30, 0])
        assert weights_of(PiKE(1, min_samples=2), unmeasured, own=(0.5, 0.5, 0.0))[2] == 0.0

    @pytest.mark.parametrize("make", [PiKE, BalancedPiKE, DoGE], ids=lambda make: make.__name__)
    def test_samples_count_where_weights_are_shares_of_tokens(self, make: Any) -> None:
        policy, lengths = make(interval_steps=1, min_samples=2, unit="tokens"), np.array([100.0, 1.0, 10.0])
        batch = observe(1, [1, 1, 1], [20, 10, 10], tokens_per_sample=lengths)
        in_samples = weights_of(policy, batch, own=[0.02, 0.48, 0.5]) / lengths
        # Own weights are 1 in 2651 of the samples; the others keep their proportions.
        expected = [2 / 40, 38 / 40 * 480 / 530, 38 / 40 * 50 / 530]
        np.testing.assert_allclose(in_samples / in_samples.sum(), expected)


class TestMeasurements:
    @pytest.mark.parametrize("nothing", [NAN, np.inf])
    def test_a_stream_without_a_new_measurement_keeps_its_average(self, nothing: float) -> None:
        whole, part, policy = measured([4, 1], [8, 8], [5, 5]), measured([4, nothing], [8, 8], [9, 1]), PiKE(1)
        led(policy, [whole, part, whole])
        state = policy.state_dict()
        assert state["squared_norm"]["counts"] == state["variance"]["counts"] == [3, 2]
        assert state["squared_norm"]["values"] == pytest.approx([4.0, 1.0])

    def test_negative_estimates_count_in_the_average_and_a_negative_average_is_no_signal(self) -> None:
        # With decay 0.5: (−0.5 + 3)/1.5 = 5/3 for the first and (1.5 − 1)/1.5 = 1/3 for the second.
        policy = raw(decay=0.5, noise_rate=0.0, scale_free=False)
        led(policy, [measured([-1, 3], [0, 0], [5, 5]), measured([3, -1], [0, 0], [5, 5])])
        assert policy.state_dict()["squared_norm"]["values"] == pytest.approx([5 / 3, 1 / 3])
        below, zero = (weights_of(raw(scale_free=False), measured([1, v], [0, 0], [5, 5])) for v in (-100.0, 0.0))
        np.testing.assert_array_equal(below, zero)

    @both
    def test_where_nothing_was_found_the_weights_hold(self, mode: Any) -> None:
        for found in (([0, 0], [0, 0]), ([-1, -2], [0, 0]), ([NAN, NAN], [NAN, NAN]), ([NAN, np.inf], [1, 1])):
            assert weights_of(PiKE(1, mode), measured(*found, [5, 5]), own=(0.3, 0.7)).tolist() == [0.3, 0.7]

    @both
    def test_it_decides_once_an_interval_however_often_there_are_gradients(self, mode: Any) -> None:
        course = [measured([4, 1], [8, 8], [5, 5], step=step) for step in range(1, 8)]
        found = [made.weights[0] for made in led(PiKE(3, mode), course)[1:]]
        assert found[0] == found[1] == 0.5
        assert found[2] == found[3] == found[4] > 0.5
        assert mode == "conceptual" or found[5] == found[6] > found[2]

    def test_a_state_of_the_other_form_is_refused_and_a_saved_one_is_plain_numbers(self) -> None:
        practical, conceptual = PiKE(1), PiKE(1, mode="conceptual")
        awkward = measured([1e300, NAN], [NAN, 5e-324], [5, 0], [[np.inf, NAN], [NAN, -1e300]])
        for policy in (practical, conceptual):
            led(policy, [awkward])
            json.dumps(policy.state_dict(), allow_nan=False)
        with refused("state"):
            conceptual.load_state_dict(practical.state_dict())


class TestStreamsThatComeAndGo:
    def test_the_rest_of_an_epoch_does_not_even_the_weights_out(self) -> None:
        rest, whole = (measured([9, 1], [1, 1], counts, batch_size=100) for counts in ([3, 1], [75, 25]))
        np.testing.assert_allclose(weights_of(raw(min_samples=2), rest), weights_of(raw(min_samples=2), whole))

    def test_one_that_left_holds_nobody_back(self) -> None:
        policy = PiKE(interval_steps=1, decay=0.0)
        there = [measured([80, 1, 3], [1] * 3, [20] * 3, shares=THIRDS)] * 51
        left = [measured([NAN, 1, 3], [1] * 3, [0, 30, 30], shares=[0.0, 0.5, 0.5])] * 49
        decisions = led(policy, [*there, *left], THIRDS)
        first, second = (made.weights[1:] / made.weights[1:].sum() for made in (decisions[51], decisions[-1]))
        assert first[1] < 0.6
        np.testing.assert_allclose(second, [2 / 60, 58 / 60])
        assert decisions[-1].weights[0] == pytest.approx(1 / 3)

    @both
    def test_one_that_was_never_measured_keeps_its_share(self, mode: Any) -> None:
        course = [measured([NAN, 1, 3], [NAN, 1, 1], [0, 30, 30])] * 50
        weights = weights_of(PiKE(1, decay=0.0, mode=mode, min_samples=0), *course, own=[0.2, 0.4, 0.4])
        assert weights[0] == pytest.approx(0.2)
        assert weights[2] > weights[1]
