"""Values of the policies that mix without measuring, of loss change, and of the wrappers."""

import math
from typing import Any

import numpy as np
import pytest

from mixer.policies import Fixed, Floor, Function, GroupDRO, Hold, LossChange, Proportional, Scheduled, Smoothed
from mixer.policies.contract import Decision, Mixture, Policy
from mixer.policies.temperature import Temperature
from mixer.policies.uniform import Uniform
from mixer.policies.wrappers.warm_up import WarmUp
from tests.mixer.policies.observed import NAN, Told, mixture, observe
from tests.refusals import refused

MIXTURE = Mixture(("a", "b"), np.array([900, 100]), np.array([0.4, 0.6]))
LOW_FIRST = np.exp(np.array([0.0, 2.0])) / (1 + np.exp(2))


def alternating() -> Told:
    """One stream after the other: (1, 0) at even steps, (0, 1) at odd ones."""
    return Told([1, 0], [0, 5], [5, 0], [0, 5])


def start(policy: Policy, own: Mixture = MIXTURE) -> Policy:
    policy.start(own)
    return policy


def assert_weights(decision: Decision, expected: Any) -> None:
    np.testing.assert_allclose(decision.weights, expected, rtol=1e-12, atol=1e-15)


class TestFixedMixtures:
    @pytest.mark.parametrize(
        ("policy", "expected"),
        [
            (Uniform(), [0.5, 0.5]),
            (Proportional(), [0.9, 0.1]),
            *[(Temperature(t), [9 ** (1 / t) / (1 + 9 ** (1 / t)), 1 / (1 + 9 ** (1 / t))]) for t in (2.0, math.inf)],
            (Fixed(), [0.4, 0.6]),
            (Fixed([3, 1]), [0.75, 0.25]),
            (Fixed({"b": 3, "a": 0}), [0.0, 1.0]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_at_the_start_and_ever_after(self, policy: Policy, expected: list[float]) -> None:
        assert_weights(policy.start(MIXTURE), expected)
        assert_weights(policy.update(observe(7, (1.0, 2.0), progress=0.5)), expected)

    def test_memories_are_streams_where_sizes_do_not_count(self) -> None:
        own = Mixture(("a", "memory"), np.array([90, 0]), np.array([0.7, 0.3]), memories=(1,))
        assert_weights(Uniform().start(own), [0.5, 0.5])
        assert_weights(Fixed({"a": 1, "memory": 3}).start(own), [0.25, 0.75])
        # Nor do sizes of many billions overflow.
        assert_weights(Temperature(0.1).start(mixture([1, 1], [2**61, 2**60])), [1024 / 1025, 1 / 1025])
        for policy in (Proportional(), Temperature()):
            assert_weights(policy.start(Mixture(("memory",), np.array([0]), np.ones(1), memories=(0,))), [1.0])


@pytest.mark.parametrize(
    ("interpolation", "course"),
    [
        ("linear", {0.0: 0.0, 0.2: 0.0, 0.4: 0.25, 0.6: 0.5, 0.8: 0.75, 1.0: 0.75}),
        ("step", {0.0: 0.0, 0.2: 0.0, 0.59: 0.0, 0.6: 0.5, 0.79: 0.5, 0.8: 0.75, 1.0: 0.75}),
    ],
)
def test_scheduled(interpolation: Any, course: dict[float, float]) -> None:
    policy = Scheduled([(0.2, {"a": 5, "b": 0}), (0.6, [1, 1]), (0.8, [1, 3])], interpolation)
    assert_weights(policy.start(MIXTURE), [1.0, 0.0])
    for progress, share in course.items():
        assert_weights(policy.update(observe(progress=progress)), [1 - share, share])


class TestFunction:
    def test_it_is_called_with_the_step_and_the_last_weights(self) -> None:
        calls: list[Any] = []
        policy = Function(lambda step, weights: calls.append((step, weights.tolist())) or {"b": 1, "a": step + 1})  # type: ignore[func-returns-value]
        assert_weights(policy.start(MIXTURE), [0.5, 0.5])
        assert_weights(policy.update(observe(1, weights=(0.5, 0.5))), [2 / 3, 1 / 3])
        assert_weights(policy.update(observe(2, weights=(0.1, 0.9))), [0.75, 0.25])
        assert calls == [(0, [0.4, 0.6]), (1, [0.5, 0.5]), (2, [0.1, 0.9])]

    def test_writing_into_the_argument_changes_nothing_else(self) -> None:
        def overwrite(step: int, weights: np.ndarray) -> np.ndarray:
            weights[:] = [1.0, 3.0]
            return weights

        seen = observe(weights=(0.1, 0.9))
        assert_weights(start(Function(overwrite)).update(seen), [0.25, 0.75])
        assert seen.weights.tolist() == [0.1, 0.9]
        assert MIXTURE.weights.tolist() == [0.4, 0.6]

    @pytest.mark.parametrize(
        ("returned", "option"),
        [
            ([1, 1, 1], "mixing function at step 5"),
            ({"a": 1}, "mixing function at step 5: weights"),
            (None, "mixing function at step 5"),
        ],
    )
    def test_what_is_no_weights_is_refused_with_the_step(self, returned: Any, option: str) -> None:
        policy = start(Function(lambda step, weights: [1, 1] if step < 5 else returned))
        policy.update(observe(4))
        with refused(option):
            policy.update(observe(5))


class TestLossChange:
    def test_two_observations_by_hand(self) -> None:
        """fast = 0.25·l1 + 0.5·l2 over 1 − 0.25, slow = 0.1875·l1 + 0.25·l2 over 1 − 0.5625."""
        policy = LossChange(temperature=2.0, fast_decay=0.5, slow_decay=0.75, floor=0.1, num_warmup_observations=2)
        assert_weights(policy.start(MIXTURE), [0.4, 0.6])
        assert_weights(policy.update(observe(1, (4.0, 3.0))), [0.4, 0.6])
        decision = policy.update(observe(2, (2.0, 2.5)))
        progress = [(1 + 1) / 0.75 - (0.75 + 0.5) / 0.4375, (0.75 + 1.25) / 0.75 - (0.5625 + 0.625) / 0.4375]
        scores = np.abs(progress) / (2.0 * np.abs(progress).mean())
        assert_weights(decision, 0.1 + 0.8 * np.exp(scores) / np.exp(scores).sum())

    @pytest.mark.parametrize(
        ("arguments", "rows", "expected"),
        [
            # Progress (p, 0) has the mean p/2, so that the scores are (2/T, 0) whatever p is.
            ({"temperature": 1.0, "floor": 0.0}, [(4.0, 3.0), (2.0, 3.0)], LOW_FIRST[::-1]),
            ({"temperature": 1.0, "floor": 0.0}, [(4e6, 3e6), (2e6, 3e6)], LOW_FIRST[::-1]),
            ({"temperature": 1e-6, "floor": 0.05}, [(3.0, 3.0), (2.0, 3.0)], [0.95, 0.05]),
            ({}, [(3.0, 3.0), (2.0, 4.0)], [0.5, 0.5]),  # a rising loss counts like a falling one
            ({}, [(0.0, 0.0), (0.0, 0.0)], [0.5, 0.5]),
        ],
    )
    def test_values(self, arguments: dict[str, Any], rows: list[tuple[float, float]], expected: Any) -> None:
        for name in ("losses", "evaluation_losses"):
            loss = "train" if name == "losses" else "evaluation"
            policy = LossChange(fast_decay=0.5, slow_decay=0.75, num_warmup_observations=2, loss=loss, **arguments)
            start(policy)
            decisions = [policy.update(observe(step, **{name: row})) for step, row in enumerate(rows, start=1)]
            assert_weights(decisions[-1], expected)
            assert_weights(policy.update(observe(9, **({} if loss == "train" else {"losses": (1.0, 7.0)}))), expected)

    def test_it_waits_for_every_stream_and_keeps_the_averages_of_one_without_a_loss(self) -> None:
        policy = start(LossChange(num_warmup_observations=2))
        for step, losses in enumerate([(1.0, NAN), (2.0, 1.0), (3.0, np.inf), (1.0, NAN)], start=1):
            assert_weights(policy.update(observe(step, losses)), [0.4, 0.6])
        assert policy.update(observe(5, (NAN, 2.0))).weights.tolist() != [0.4, 0.6]
        before = policy.state_dict()
        policy.update(observe(6, (NAN, np.inf)))
        assert policy.state_dict() == before


class TestFloor:
    @pytest.mark.parametrize(("minimum", "expected"), [(0.0, [0.9, 0.1]), (0.25, [0.7, 0.3]), (0.5, [0.5, 0.5])])
    def test_by_the_equation(self, minimum: float, expected: list[float]) -> None:
        assert_weights(Floor(Proportional(), minimum).start(MIXTURE), expected)
        assert_weights(start(Floor(alternating(), minimum)).update(observe(1)), [minimum, 1 - minimum])

    def test_around_weights_on_losses_it_changes_what_is_sampled_not_what_counts(self) -> None:
        """α = (1/2, 1/2) of own weights (0.9, 0.1) that become (0.66, 0.34)."""
        decision = Floor(GroupDRO(), 0.3).start(mixture([0.9, 0.1]))
        assert_weights(decision, [0.66, 0.34])
        np.testing.assert_allclose(decision.weights * decision.loss_weights, [0.5, 0.5], rtol=1e-12)

    def test_a_stream_that_the_policy_leaves_out_is_drawn_and_counts_nothing(self) -> None:
        policy = Told(Decision(np.array([0.0, 2.0]), np.array([3.0, 1.0])))
        decision = Floor(policy, 0.2).start(MIXTURE)
        assert_weights(decision, [0.2, 0.8])
        np.testing.assert_allclose(decision.loss_weights, [0.0, 1.25], rtol=1e-12)
        assert Floor(policy, 0.0).start(MIXTURE).loss_weights.tolist() == [3.0, 1.0]

    def test_streams_with_samples_on_top_get_no_share(self) -> None:
        decision = Decision(np.array([0.0, 3.0, 1.0]), additional=np.array([0.5, 0.0, 0.0]))
        lifted = Floor(Told(decision), 0.3).start(mixture([1, 1, 1]))
        assert_weights(lifted, [0.0, 0.6, 0.4])
        assert lifted.additional.tolist() == [0.5, 0.0, 0.0]


class TestSmoothed:
    def test_by_the_equation(self) -> None:
        policy = Smoothed(alternating(), 0.75)
        assert_weights(policy.start(MIXTURE), [1.0, 0.0])
        assert_weights(policy.update(observe(1)), [0.75, 0.25])
        assert_weights(policy.update(observe(2)), [0.8125, 0.1875])
        assert_weights(start(Smoothed(alternating(), 0.0)).update(observe(1)), [0.0, 1.0])

    def test_around_weights_on_losses_it_changes_what_is_sampled_not_what_counts(self) -> None:
        first = Decision(np.array([0.5, 0.5]), np.array([1.6, 0.4]))
        policy = Smoothed(Told(first, Decision(np.array([0.9, 0.1]), np.array([1.0, 1.0]))), 0.5)
        assert policy.start(MIXTURE).loss_weights.tolist() == [1.6, 0.4]
        decision = policy.update(observe(1))
        assert_weights(decision, [0.7, 0.3])
        np.testing.assert_allclose(decision.weights * decision.loss_weights, [0.9, 0.1], rtol=1e-12)

    def test_a_stream_that_gets_samples_on_top_loses_its_share_at_once(self) -> None:
        on_top = Decision(np.array([0.0, 1.0, 3.0]), additional=np.array([0.5, 0.0, 0.0]))
        policy = start(Smoothed(Told([0.5, 0.25, 0.25], on_top, [1, 1, 2]), 0.5))
        assert_weights(policy.update(observe(1)), [0.0, 0.375, 0.625])
        assert_weights(policy.update(observe(2)), [0.125, 0.3125, 0.5625])
        all_on_top = Decision(np.array([0.0, 1.0]), additional=np.array([0.5, 0.0]))  # there are no old weights
        assert_weights(start(Smoothed(Told([1, 0], all_on_top), 0.5)).update(observe(1)), [0.0, 1.0])


def test_warm_up_holds_the_weights_of_the_streams_first() -> None:
    policy = WarmUp(Fixed([1, 3]), 2)
    found = [policy.start(MIXTURE), *(policy.update(observe(step)) for step in (1, 2, 3))]
    for decision, expected in zip(found, [[0.4, 0.6], [0.4, 0.6], [0.25, 0.75], [0.25, 0.75]], strict=True):
        assert_weights(decision, expected)
    assert_weights(WarmUp(Fixed([1, 3]), 0).start(MIXTURE), [0.25, 0.75])


def test_hold_holds_a_decision_for_so_many_steps_with_its_factors() -> None:
    policy = Hold(Function(lambda step, weights: [1, step]), 3)
    decisions = [policy.start(MIXTURE), *(policy.update(observe(step)) for step in range(1, 8))]
    for decision, step in zip(decisions, [0, 0, 0, 3, 3, 3, 6, 6], strict=True):
        assert_weights(decision, [1 / (1 + step), step / (1 + step)])
    even = np.array([0.5, 0.5])
    policy = Hold(Told(Decision(even, np.array([1.5, 0.5])), Decision(even, np.array([0.5, 1.5]))), 2)
    factors = [policy.start(MIXTURE).loss_weights, *(policy.update(observe(step)).loss_weights for step in (1, 2))]
    assert [factor.tolist() for factor in factors] == [[1.5, 0.5], [1.5, 0.5], [0.5, 1.5]]
    assert_weights(start(Hold(alternating(), 1)).update(observe(1)), [0.0, 5.0])
