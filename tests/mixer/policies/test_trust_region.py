import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import FAMO, Decision, Function, GroupDRO, Policy, TrustRegion, Uniform
from tests.mixer.policies.losses import Told, mixture, observe
from tests.mixer.policies.seen import mixture_of, seen


def jumps(*rows: list[float]) -> Told:
    return Told(*(Decision(np.array(row, dtype=np.float64)) for row in rows))


def run(policy: Policy, num_steps: int, num_streams: int = 2) -> list[Decision]:
    batches = (policy.update(observe(step, num_streams=num_streams)) for step in range(1, num_steps + 1))
    return [policy.start(mixture([1.0] * num_streams)), *batches]


def divergence(old: np.ndarray, new: np.ndarray, least: float) -> float:
    old, new = np.maximum(old, least), np.maximum(new, least)
    return float((old * np.log(old / new)).sum() + new.sum() - old.sum())


def test_logarithms_by_hand() -> None:
    # From (0.9, 0.1) to (0.1, 0.9) with factor 2: the second may double, that is an eighth of the way, on which the
    # first falls to 0.8. Then it may double again, to 0.4; the first falls by half, to 0.3 and 0.15, and gets there.
    decisions = run(TrustRegion(jumps([9, 1], [1, 9]), math.log(2)), 5)
    expected = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.15, 0.85], [0.1, 0.9]]
    np.testing.assert_allclose([d.weights for d in decisions], expected, rtol=1e-12)


def test_a_weight_of_0_may_grow_from_the_least_that_counts() -> None:
    decisions = run(TrustRegion(jumps([1, 0], [0.5, 0.5]), math.log(2), least=0.05), 4)
    np.testing.assert_allclose([d.weights[1] for d in decisions], [0.0, 0.1, 0.2, 0.4, 0.5], rtol=1e-12)


def test_and_a_small_weight_may_fall_to_0() -> None:
    decisions = run(TrustRegion(jumps([0.8, 0.2], [1, 0]), math.log(2), least=0.06), 3)
    np.testing.assert_allclose([d.weights[1] for d in decisions], [0.2, 0.1, 0.0, 0.0], atol=1e-15)


def test_divergence_by_hand() -> None:
    # From (1, 0) towards (0, 1) the divergence is -log(1 - λ).
    decisions = run(TrustRegion(jumps([1, 0], [0, 1]), None, math.log(4 / 3), least=1e-9), 1)
    np.testing.assert_allclose(decisions[1].weights, [0.75, 0.25], rtol=1e-6)


def test_divergence_of_weights_that_count_is_that_of_kullback_and_leibler() -> None:
    _, found = run(TrustRegion(jumps([0.5, 0.3, 0.2], [0.05, 0.05, 0.9]), None, 0.05), 1, 3)
    old = np.array([0.5, 0.3, 0.2])
    assert (old * np.log(old / found.weights)).sum() == pytest.approx(0.05, rel=1e-9)


weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=4, max_size=4).filter(
    lambda row: sum(row) > 0
)


@given(old=weights, new=weights, most=st.floats(0.01, 3.0), least=st.floats(1e-4, 0.5))
def test_no_logarithm_changes_by_more_and_one_by_as_much(old, new, most, least) -> None:
    first, second = run(TrustRegion(jumps(old, new), most, least=least), 1, 4)
    target = np.array(new) / sum(new)
    changes = np.abs(np.log(np.maximum(second.weights, least)) - np.log(np.maximum(first.weights, least)))
    assert changes.max() <= most + 1e-9
    assert second.weights.sum() == pytest.approx(1.0)
    if not np.allclose(second.weights, target):
        jump = np.abs(np.log(np.maximum(target, least)) - np.log(np.maximum(np.array(old) / sum(old), least)))
        assert jump.max() > most - 1e-9, "it could have gone all the way"


@given(old=weights, new=weights, most=st.floats(1e-4, 3.0), least=st.floats(1e-4, 0.5))
def test_the_divergence_is_the_most_that_is_allowed(old, new, most, least) -> None:
    _, second = run(TrustRegion(jumps(old, new), None, most, least), 1, 4)
    start, target = np.array(old) / sum(old), np.array(new) / sum(new)
    found = divergence(start, second.weights, least)
    assert found <= most + 1e-9
    assert np.allclose(second.weights, target) or found == pytest.approx(most, rel=1e-5)


@given(old=weights, new=weights)
def test_it_arrives_and_stays(old, new) -> None:
    decisions = run(TrustRegion(jumps(old, new), 0.7, 0.3), 60, 4)
    np.testing.assert_array_equal(decisions[-1].weights, np.array(new) / sum(new))


def test_the_tighter_of_both_limits_holds() -> None:
    loose, tight = jumps([9, 1], [1, 9]), jumps([9, 1], [1, 9])
    both = run(TrustRegion(loose, math.log(2), 1e-4), 1)[1].weights
    np.testing.assert_array_equal(both, run(TrustRegion(tight, None, 1e-4), 1)[1].weights)


def test_within_the_limit_weights_are_passed_on_to_the_bit() -> None:
    decisions = run(TrustRegion(Function(lambda step, weights: [1 + step % 2, 3]), 5.0), 3)
    assert decisions[3].weights.tolist() == [0.4, 0.6]


def test_loss_weights_are_limited_alike() -> None:
    even = np.array([0.5, 0.5])
    inner = Told(Decision(even, np.array([1.8, 0.2])), Decision(even, np.array([0.2, 1.8])))
    decisions = run(TrustRegion(inner, math.log(2)), 2)
    np.testing.assert_allclose(decisions[1].loss_weights, [1.6, 0.4], rtol=1e-12)
    np.testing.assert_allclose(decisions[2].loss_weights, [1.2, 0.8], rtol=1e-12)


def test_loss_weights_that_come_and_go_pass_through_ones() -> None:
    even = np.array([0.5, 0.5])
    inner = Told(Decision(even), Decision(even, np.array([0.2, 1.8])), Decision(even))
    decisions = run(TrustRegion(inner, math.log(1.5)), 2)
    assert decisions[0].loss_weights is None
    np.testing.assert_allclose(decisions[1].loss_weights, [2 / 3, 4 / 3], rtol=1e-12)
    np.testing.assert_allclose(decisions[2].loss_weights, [1.0, 1.0], rtol=1e-12)


@pytest.mark.parametrize("inner", [FAMO(acts_on="loss"), GroupDRO(1.0)], ids=lambda policy: policy.name)
def test_uneven_weights_leave_the_mean_factor_at_one(inner: Policy) -> None:
    own, losses = np.array([0.99, 0.01]), np.array([1.0, 0.01])
    policy = TrustRegion(inner)
    first = policy.start(mixture_of(own.tolist()))
    observations = [replace(seen(step, losses.tolist()), losses_after=losses) for step in range(1, 30)]
    decisions = [first, *map(policy.update, observations)]
    products = np.array([decision.weights * decision.loss_weights for decision in decisions])
    np.testing.assert_allclose(products.sum(axis=1), 1.0, rtol=1e-12)
    changes = np.abs(np.diff(np.log(np.maximum(products, 0.01)), axis=0))
    assert 0.4 < changes.max() <= 0.5 + 1e-9


def test_what_counts_is_limited_not_the_factors() -> None:
    """Parts of the gradient are (1/2, 1/2), then (1/4, 3/4): within a factor of 2, though the factors are not alike."""
    weights = np.array([0.1, 0.9])
    inner = Told(Decision(weights, np.array([5.0, 5 / 9])), Decision(weights, np.array([2.5, 5 / 6])))
    assert run(TrustRegion(inner, math.log(2)), 1)[1].loss_weights.tolist() == [2.5, 5 / 6]
    # To (1/2, 1/2) again with a factor of 1.25: λ = 1/4 of the way.
    inner = Told(Decision(weights, np.array([2.5, 5 / 6])), Decision(weights, np.array([5.0, 5 / 9])))
    found = run(TrustRegion(inner, math.log(1.25)), 1)[1].loss_weights
    np.testing.assert_allclose(weights * found, [0.25 * 1.25, 1 - 0.25 * 1.25], rtol=1e-12)


def test_weights_that_move_with_the_factors_leave_the_mean_factor() -> None:
    first = Decision(np.array([0.9, 0.1]), np.array([1.0, 1.0]))
    inner = Told(first, Decision(np.array([0.1, 0.9]), np.array([5.0, 5 / 9])))
    for decision in run(TrustRegion(inner, 0.1), 40):
        assert decision.weights @ decision.loss_weights == pytest.approx(1.0, rel=1e-12)


def test_factors_of_streams_without_weight_are_no_stumbling_block() -> None:
    weights = np.array([1.0, 0.0])
    inner = Told(Decision(weights), Decision(weights, np.array([0.0, 3.0])))
    assert run(TrustRegion(inner, 0.1), 1)[1].loss_weights.tolist() == [0.0, 3.0]


def test_a_stream_with_samples_on_top_has_no_weight_left() -> None:
    extra = Decision(np.array([1.0, 0.0]), additional=np.array([0.0, 0.5]))
    decisions = run(TrustRegion(Told(Decision(np.array([0.2, 0.8])), extra), 0.1), 1)
    assert decisions[1].weights.tolist() == [1.0, 0.0]
    assert decisions[1].additional.tolist() == [0.0, 0.5]


def test_saved_on_the_way_it_goes_on_alike() -> None:
    even = np.array([0.5, 0.5])
    inner = [Decision(np.array([0.9, 0.1]), np.array([1.0, 1.0])), Decision(even, np.array([0.1, 1.9]))]
    policy, resumed = TrustRegion(Told(*inner), 0.1), TrustRegion(Told(*inner), 0.1)
    run(policy, 3)
    resumed.start(mixture([0.5, 0.5]))
    resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
    for step in range(4, 9):
        one, other = policy.update(observe(step)), resumed.update(observe(step))
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.loss_weights, other.loss_weights)


def test_without_a_limit_it_is_refused() -> None:
    with pytest.raises(ValueError, match="TrustRegion needs a limit, got None for both"):
        TrustRegion(Uniform(), None)


@pytest.mark.parametrize("arguments", [{"max_log_change": 0.0}, {"max_divergence": -1.0}, {"least": 0.0}])
def test_values_outside_their_ranges_are_refused(arguments: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        TrustRegion(Uniform(), **arguments)
