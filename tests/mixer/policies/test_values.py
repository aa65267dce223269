import numpy as np
import pytest

from mixer.policies import (
    Decision,
    Fixed,
    Floor,
    Function,
    GroupDRO,
    Hold,
    LossChange,
    Mixture,
    Observation,
    Policy,
    Proportional,
    Scheduled,
    Smoothed,
    Temperature,
    Uniform,
    WarmUp,
)
from tests.mixer.policies.losses import Told

MIXTURE = Mixture(("a", "b"), np.array([900, 100]), np.array([0.4, 0.6]))


class Alternating(Policy):
    """One stream after the other: (1, 0) at even steps, (0, 1) at odd ones."""

    def start(self, mixture: Mixture) -> Decision:
        return Decision(np.array([1.0, 0.0]))

    def update(self, observation: Observation) -> Decision:
        return Decision(np.array([0.0, 5.0] if observation.step % 2 else [5.0, 0.0]))


def observe(
    step: int,
    losses: tuple[float, float] = (np.nan, np.nan),
    progress: float = 0.0,
    weights: tuple[float, float] = (0.5, 0.5),
    evaluation_losses: tuple[float, float] | None = None,
) -> Observation:
    nothing = np.zeros(2, dtype=np.int64)
    evaluation = None if evaluation_losses is None else np.array(evaluation_losses)
    return Observation(step, progress, np.array(weights), nothing, nothing, nothing, np.array(losses), evaluation)


def assert_weights(decision: Decision, expected: list[float]) -> None:
    np.testing.assert_allclose(decision.weights, expected, rtol=1e-12, atol=1e-15)


class TestFixedMixtures:
    @pytest.mark.parametrize(
        ("policy", "expected"),
        [
            (Uniform(), [0.5, 0.5]),
            (Proportional(), [0.9, 0.1]),
            (Temperature(2.0), [0.75, 0.25]),
            (Temperature(1.0), [0.9, 0.1]),
            (Temperature(float("inf")), [0.5, 0.5]),
            (Temperature(3.33), [9 ** (1 / 3.33) / (1 + 9 ** (1 / 3.33)), 1 / (1 + 9 ** (1 / 3.33))]),
            (Fixed(), [0.4, 0.6]),
            (Fixed([3, 1]), [0.75, 0.25]),
            (Fixed({"b": 3, "a": 1}), [0.25, 0.75]),
            (Fixed({"b": 3, "a": 0}), [0.0, 1.0]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_at_the_start_and_ever_after(self, policy: Policy, expected: list[float]) -> None:
        assert_weights(policy.start(MIXTURE), expected)
        assert_weights(policy.update(observe(7, (1.0, 2.0), 0.5)), expected)

    def test_the_default_temperature_is_that_of_multilingual_t5(self) -> None:
        assert Temperature().temperature == 3.33

    def test_sizes_of_many_billions_do_not_overflow(self) -> None:
        huge = Mixture(("a", "b"), np.array([2**61, 2**60]), np.array([0.5, 0.5]))
        assert_weights(Temperature(0.1).start(huge), [1024 / 1025, 1 / 1025])

    @pytest.mark.parametrize("policy", [Proportional(), Temperature()], ids=lambda policy: policy.name)
    def test_the_size_of_a_memory_is_no_size(self, policy: Policy) -> None:
        for size in (0, 30):
            mixture = Mixture(("a", "memory"), np.array([90, size]), np.array([0.5, 0.5]), memories=(1,))
            with pytest.raises(ValueError, match=rf"\['memory'\] are replay buffers.*policy={policy.name}\(\)"):
                policy.start(mixture)

    @pytest.mark.parametrize("policy", [Proportional(), Temperature()], ids=lambda policy: policy.name)
    def test_a_memory_alone_has_all(self, policy: Policy) -> None:
        assert_weights(policy.start(Mixture(("memory",), np.array([0]), np.array([1.0]), memories=(0,))), [1.0])

    def test_other_mixtures_take_memories_for_streams(self) -> None:
        mixture = Mixture(("a", "memory"), np.array([90, 0]), np.array([0.7, 0.3]), memories=(1,))
        assert_weights(Uniform().start(mixture), [0.5, 0.5])
        assert_weights(Fixed().start(mixture), [0.7, 0.3])
        assert_weights(Fixed({"a": 1, "memory": 3}).start(mixture), [0.25, 0.75])

    @pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), "hot"])
    def test_a_temperature_that_cannot_be_is_refused(self, temperature: float) -> None:
        with pytest.raises(ValueError, match="temperature must be above 0"):
            Temperature(temperature)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ([1, 2, 3], r"Fixed: expected 2 weights, one for each of \['a', 'b'\], got shape \[3\]"),
            (3.0, r"Fixed: expected 2 weights, .* got shape \[\]"),
            ([], r"got shape \[0\]"),
            ([1, -1], "Fixed: weights must be finite and 0 or more, but 'b' has -1.0"),
            ([float("nan"), 1], "but 'a' has nan"),
            ([1, float("inf")], "but 'b' has inf"),
            ([0, 0], "Fixed: the weights of all streams are 0"),
            ({"a": 1}, r"Fixed: .* missing: \['b'\], unknown: \[\]"),
            ({"a": 1, "b": 1, "x": 1}, r"missing: \[\], unknown: \['x'\]"),
            (["one", "two"], "Fixed: weights must be numbers"),
        ],
    )
    def test_weights_that_do_not_fit_are_refused_at_the_start(self, weights: object, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Fixed(weights).start(MIXTURE)


class TestScheduled:
    @pytest.mark.parametrize(
        ("progress", "share_of_b"), [(0.0, 0.0), (0.2, 0.0), (0.4, 0.25), (0.6, 0.5), (0.8, 0.75), (1.0, 0.75)]
    )
    def test_linear(self, progress: float, share_of_b: float) -> None:
        policy = Scheduled([(0.2, {"a": 5, "b": 0}), (0.6, [1, 1]), (0.8, [1, 3])])
        assert_weights(policy.start(MIXTURE), [1.0, 0.0])
        assert_weights(policy.update(observe(1, progress=progress)), [1 - share_of_b, share_of_b])

    @pytest.mark.parametrize(
        ("progress", "share_of_b"),
        [(0.0, 0.0), (0.2, 0.0), (0.59, 0.0), (0.6, 0.5), (0.79, 0.5), (0.8, 0.75), (1, 0.75)],
    )
    def test_in_steps(self, progress: float, share_of_b: float) -> None:
        policy = Scheduled([(0.2, {"a": 5, "b": 0}), (0.6, [1, 1]), (0.8, [1, 3])], "step")
        policy.start(MIXTURE)
        assert_weights(policy.update(observe(1, progress=progress)), [1 - share_of_b, share_of_b])

    @pytest.mark.parametrize("progresses", [[], [0.5, 0.5], [0.6, 0.4], [-0.1, 1.0], [0.0, 1.1], [float("nan")]])
    def test_points_that_do_not_ascend_are_refused(self, progresses: list[float]) -> None:
        with pytest.raises(ValueError, match=r"ascending progresses in \[0, 1\]"):
            Scheduled([(progress, [1, 1]) for progress in progresses])

    @pytest.mark.parametrize("points", [3, [0.0, 1.0], [("early", [1, 1])], "ab"])
    def test_what_are_no_points_is_refused(self, points: object) -> None:
        with pytest.raises(ValueError, match=r"points must be a list of \(progress, weights\), got .*; such as"):
            Scheduled(points)

    def test_another_interpolation_is_refused(self) -> None:
        with pytest.raises(ValueError, match="interpolation must be 'linear' or 'step', got 'cubic'"):
            Scheduled([(0.0, [1, 1])], "cubic")

    def test_weights_that_do_not_fit_are_refused_with_their_progress(self) -> None:
        with pytest.raises(ValueError, match=r"Scheduled at progress 0.5: .* 'b' has -1.0"):
            Scheduled([(0.0, [1, 1]), (0.5, [1, -1])]).start(MIXTURE)


class TestFunction:
    def test_it_is_called_with_the_step_and_the_last_weights(self) -> None:
        calls = []
        policy = Function(lambda step, weights: calls.append((step, weights.tolist())) or {"b": 1, "a": step + 1})
        assert_weights(policy.start(MIXTURE), [0.5, 0.5])
        assert_weights(policy.update(observe(1, weights=(0.5, 0.5))), [2 / 3, 1 / 3])
        assert_weights(policy.update(observe(2, weights=(0.1, 0.9))), [0.75, 0.25])
        assert calls == [(0, [0.4, 0.6]), (1, [0.5, 0.5]), (2, [0.1, 0.9])]

    def test_writing_into_the_argument_changes_nothing_else(self) -> None:
        def overwrite(step: int, weights: np.ndarray) -> np.ndarray:
            weights[:] = [1.0, 3.0]
            return weights

        seen = observe(1, weights=(0.1, 0.9))
        policy = Function(overwrite)
        policy.start(MIXTURE)
        assert_weights(policy.update(seen), [0.25, 0.75])
        assert seen.weights.tolist() == [0.1, 0.9]
        assert MIXTURE.weights.tolist() == [0.4, 0.6]

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            ([1, 1, 1], r"expected 2 weights, .* got shape \[3\]"),
            ([1, float("nan")], "'b' has nan"),
            ([1, -1], "'b' has -1.0"),
            ([0, 0], "weights of all streams are 0"),
            ({"a": 1}, r"missing: \['b'\]"),
            (None, "expected 2 weights|must be numbers"),
            ("ab", "expected 2 weights|must be numbers"),
        ],
    )
    def test_what_is_no_weights_is_refused_with_the_step(self, returned: object, message: str) -> None:
        policy = Function(lambda step, weights: [1, 1] if step < 5 else returned)
        policy.start(MIXTURE)
        policy.update(observe(4))
        with pytest.raises(ValueError, match=f"mixing function at step 5: .*({message})"):
            policy.update(observe(5))

    def test_only_what_can_be_called_is_taken(self) -> None:
        with pytest.raises(TypeError, match=r"callable as f\(step, weights\), got int"):
            Function(3)


class TestLossChange:
    def test_two_observations_by_hand(self) -> None:
        """fast = 0.25·l1 + 0.5·l2 over 1 − 0.25, slow = 0.1875·l1 + 0.25·l2 over 1 − 0.5625."""
        policy = LossChange(temperature=2.0, fast_decay=0.5, slow_decay=0.75, floor=0.1, num_warmup_observations=2)
        assert_weights(policy.start(MIXTURE), [0.4, 0.6])
        assert_weights(policy.update(observe(1, (4.0, 3.0))), [0.4, 0.6])
        decision = policy.update(observe(2, (2.0, 2.5)))
        progress = [(1 + 1) / 0.75 - (0.75 + 0.5) / 0.4375, (0.75 + 1.25) / 0.75 - (0.5625 + 0.625) / 0.4375]
        scores = np.abs(progress) / (2.0 * np.abs(progress).mean())
        shares = np.exp(scores) / np.exp(scores).sum()
        assert_weights(decision, (0.1 + 0.8 * shares).tolist())

    def test_a_stream_that_moves_alone(self) -> None:
        """Progress (p, 0) has the mean p/2, so that the scores are (2/T, 0) whatever p is."""
        policy = LossChange(temperature=1.0, fast_decay=0.5, slow_decay=0.75, floor=0.0, num_warmup_observations=2)
        policy.start(MIXTURE)
        policy.update(observe(1, (4.0, 3.0)))
        decision = policy.update(observe(2, (2.0, 3.0)))
        assert_weights(decision, [np.exp(2) / (1 + np.exp(2)), 1 / (1 + np.exp(2))])

    def test_a_rising_loss_counts_like_a_falling_one(self) -> None:
        policy = LossChange(fast_decay=0.5, slow_decay=0.75, num_warmup_observations=2)
        policy.start(MIXTURE)
        policy.update(observe(1, (3.0, 3.0)))
        assert_weights(policy.update(observe(2, (2.0, 4.0))), [0.5, 0.5])

    def test_losses_that_stand_still_give_equal_shares(self) -> None:
        policy = LossChange(num_warmup_observations=1)
        policy.start(MIXTURE)
        assert_weights(policy.update(observe(1, (0.0, 0.0))), [0.5, 0.5])

    def test_losses_too_small_for_normal_numbers_give_shares(self) -> None:
        policy = LossChange(temperature=0.01, fast_decay=0.5, floor=0.0, num_warmup_observations=1)
        policy.start(MIXTURE)
        for step, losses in enumerate([(0.0, 0.0), (0.0, 1e-322), (0.0, 0.0)] * 4, start=1):
            weights = policy.update(observe(step, losses)).weights
            assert np.isfinite(weights).all()
            assert weights.sum() == pytest.approx(1.0)

    def test_a_loss_in_other_units_gives_the_same_weights(self) -> None:
        weights = []
        for scale in (1.0, 2.0**20):
            policy = LossChange(num_warmup_observations=1, fast_decay=0.5)
            policy.start(MIXTURE)
            policy.update(observe(1, (3.0 * scale, 1.0 * scale)))
            weights.append(policy.update(observe(2, (2.0 * scale, 0.9 * scale))).weights.tolist())
        assert weights[0] == pytest.approx(weights[1], rel=1e-12)

    def test_the_floor_holds(self) -> None:
        policy = LossChange(temperature=1e-6, fast_decay=0.5, floor=0.05, num_warmup_observations=1)
        policy.start(MIXTURE)
        policy.update(observe(1, (3.0, 3.0)))
        assert_weights(policy.update(observe(2, (2.0, 3.0))), [0.95, 0.05])

    def test_it_waits_for_every_stream(self) -> None:
        policy = LossChange(num_warmup_observations=2)
        policy.start(MIXTURE)
        for step, losses in enumerate([(1.0, np.nan), (2.0, 1.0), (3.0, np.inf), (1.0, np.nan)], start=1):
            assert_weights(policy.update(observe(step, losses)), [0.4, 0.6])
        assert policy.update(observe(5, (np.nan, 2.0))).weights.tolist() != [0.4, 0.6]

    def test_a_stream_that_is_not_observed_keeps_its_averages(self) -> None:
        policy = LossChange(num_warmup_observations=1)
        policy.start(MIXTURE)
        policy.update(observe(1, (1.0, 2.0)))
        before = policy.state_dict()
        policy.update(observe(2, (np.nan, np.inf)))
        assert policy.state_dict() == before

    def test_evaluation_losses_are_followed_when_they_come(self) -> None:
        policy = LossChange(0.5, 0.5, 0.75, 0.0, 2, loss="evaluation")
        policy.start(MIXTURE)
        policy.update(observe(1, (9.0, 9.0), evaluation_losses=(4.0, 3.0)))
        assert_weights(policy.update(observe(2, (1.0, 7.0))), [0.4, 0.6])
        decision = policy.update(observe(3, evaluation_losses=(2.0, 3.0)))
        assert_weights(decision, [np.exp(4) / (1 + np.exp(4)), 1 / (1 + np.exp(4))])
        assert_weights(policy.update(observe(4, (1.0, 7.0))), decision.weights.tolist())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
            ({"temperature": float("nan")}, "temperature must be above 0, got nan"),
            ({"temperature": "hot"}, "temperature must be above 0, got 'hot'"),
            ({"fast_decay": 0.98}, "fast_decay must be below slow_decay, got 0.98 and 0.98"),
            ({"slow_decay": 1.0}, r"slow_decay must be in \[0, 1\), got 1.0"),
            ({"slow_decay": "0.98"}, r"slow_decay must be in \[0, 1\), got '0.98'"),
            ({"fast_decay": -0.1}, r"fast_decay must be in \[0, 1\), got -0.1"),
            ({"floor": "low"}, "floor must be in .*, got 'low'"),
            ({"floor": -0.1}, "floor must be in"),
            ({"floor": float("nan")}, "floor must be in"),
            ({"num_warmup_observations": 0}, "num_warmup_observations must be a whole number, 1 or more, got 0"),
            ({"num_warmup_observations": 2.5}, "num_warmup_observations must be a whole number, 1 or more, got 2.5"),
            ({"loss": "test"}, "loss must be 'train' or 'evaluation', got 'test'"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, arguments: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            LossChange(**arguments)

    def test_floors_above_one_are_refused_at_the_start(self) -> None:
        LossChange(floor=0.5).start(MIXTURE)
        with pytest.raises(ValueError, match=r"floor 0\.6 for each of 2 streams is more than 1 in all"):
            LossChange(floor=0.6).start(MIXTURE)


class TestFloor:
    def test_every_stream_is_lifted(self) -> None:
        policy = Floor(Alternating(), 0.1)
        assert_weights(policy.start(MIXTURE), [0.9, 0.1])
        assert_weights(policy.update(observe(1)), [0.1, 0.9])

    @pytest.mark.parametrize(("minimum", "expected"), [(0.0, [0.9, 0.1]), (0.25, [0.7, 0.3]), (0.5, [0.5, 0.5])])
    def test_by_the_equation(self, minimum: float, expected: list[float]) -> None:
        assert_weights(Floor(Proportional(), minimum).start(MIXTURE), expected)

    def test_around_weights_on_losses_it_changes_what_is_sampled_not_what_counts(self) -> None:
        """α = (1/2, 1/2) of own weights (0.9, 0.1) that become (0.66, 0.34)."""
        mixture = Mixture(("a", "b"), np.array([1, 1]), np.array([0.9, 0.1]))
        decision = Floor(GroupDRO(), 0.3).start(mixture)
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
        mixture = Mixture(("a", "b", "c"), np.full(3, 1), np.full(3, 1 / 3))
        lifted = Floor(Told(decision), 0.3).start(mixture)
        assert_weights(lifted, [0.0, 0.6, 0.4])
        assert lifted.additional.tolist() == [0.5, 0.0, 0.0]

    @pytest.mark.parametrize("minimum", [-0.1, 1.1, float("nan"), "low"])
    def test_a_minimum_that_cannot_be_is_refused(self, minimum: float) -> None:
        with pytest.raises(ValueError, match=r"minimum must be in \[0, 1\]"):
            Floor(Uniform(), minimum)

    def test_a_minimum_for_too_many_streams_is_refused_at_the_start(self) -> None:
        with pytest.raises(ValueError, match=r"0\.51 for each of 2 streams is more than 1 in all; give min.*=0\.25"):
            Floor(Uniform(), 0.51).start(MIXTURE)


class TestSmoothed:
    def test_by_the_equation(self) -> None:
        policy = Smoothed(Alternating(), 0.75)
        assert_weights(policy.start(MIXTURE), [1.0, 0.0])
        assert_weights(policy.update(observe(1)), [0.75, 0.25])
        assert_weights(policy.update(observe(2)), [0.8125, 0.1875])

    def test_without_decay_it_follows_at_once(self) -> None:
        policy = Smoothed(Alternating(), 0.0)
        policy.start(MIXTURE)
        assert_weights(policy.update(observe(1)), [0.0, 1.0])

    def test_around_weights_on_losses_it_changes_what_is_sampled_not_what_counts(self) -> None:
        first = Decision(np.array([0.5, 0.5]), np.array([1.6, 0.4]))
        policy = Smoothed(Told(first, Decision(np.array([0.9, 0.1]), np.array([1.0, 1.0]))), 0.5)
        assert policy.start(MIXTURE).loss_weights.tolist() == [1.6, 0.4]
        decision = policy.update(observe(1))
        assert_weights(decision, [0.7, 0.3])
        np.testing.assert_allclose(decision.weights * decision.loss_weights, [0.9, 0.1], rtol=1e-12)

    def test_a_stream_that_gets_samples_on_top_loses_its_share_at_once(self) -> None:
        on_top = Decision(np.array([0.0, 1.0, 3.0]), additional=np.array([0.5, 0.0, 0.0]))
        policy = Smoothed(Told(Decision(np.array([0.5, 0.25, 0.25])), on_top, Decision(np.array([1.0, 1, 2]))), 0.5)
        policy.start(MIXTURE)
        second, third = policy.update(observe(1)), policy.update(observe(2))
        assert_weights(second, [0.0, 0.375, 0.625])
        assert_weights(third, [0.125, 0.3125, 0.5625])

    def test_with_all_on_top_there_are_no_old_weights(self) -> None:
        on_top = Decision(np.array([0.0, 1.0]), additional=np.array([0.5, 0.0]))
        policy = Smoothed(Told(Decision(np.array([1.0, 0.0])), on_top), 0.5)
        policy.start(MIXTURE)
        assert_weights(policy.update(observe(1)), [0.0, 1.0])

    @pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan"), "slow"])
    def test_a_decay_that_cannot_be_is_refused(self, decay: float) -> None:
        with pytest.raises(ValueError, match=rf"decay must be in \[0, 1\), got {decay!r}; 0 follows at once"):
            Smoothed(Uniform(), decay)


class TestWarmUp:
    def test_the_weights_of_the_streams_hold_first(self) -> None:
        policy = WarmUp(Fixed([1, 3]), 2)
        found = [policy.start(MIXTURE), policy.update(observe(1)), policy.update(observe(2)), policy.update(observe(3))]
        for decision, expected in zip(found, [[0.4, 0.6], [0.4, 0.6], [0.25, 0.75], [0.25, 0.75]], strict=True):
            assert_weights(decision, expected)

    def test_none_is_no_warm_up(self) -> None:
        assert_weights(WarmUp(Fixed([1, 3]), 0).start(MIXTURE), [0.25, 0.75])

    @pytest.mark.parametrize("num_steps", [-1, float("nan"), float("inf"), 2.5, "2"])
    def test_a_number_of_steps_that_cannot_be_is_refused(self, num_steps: float) -> None:
        with pytest.raises(ValueError, match=f"num_steps must be a whole number, 0 or more, got {num_steps!r}; 0 is"):
            WarmUp(Uniform(), num_steps)


class TestHold:
    def test_a_decision_holds_for_so_many_steps(self) -> None:
        policy = Hold(Function(lambda step, weights: [1, step]), 3)
        decisions = [policy.start(MIXTURE), *(policy.update(observe(step)) for step in range(1, 8))]
        held_from = [0, 0, 0, 3, 3, 3, 6, 6]
        for decision, step in zip(decisions, held_from, strict=True):
            assert_weights(decision, [1 / (1 + step), step / (1 + step)])

    def test_one_step_is_no_holding(self) -> None:
        policy = Hold(Alternating(), 1)
        policy.start(MIXTURE)
        assert_weights(policy.update(observe(1)), [0.0, 5.0])

    @pytest.mark.parametrize("num_steps", [0, float("nan"), float("inf"), 2.5, "2"])
    def test_a_number_of_steps_that_cannot_be_is_refused(self, num_steps: float) -> None:
        with pytest.raises(ValueError, match=f"num_steps must be a whole number, 1 or more, got {num_steps!r}; 1 "):
            Hold(Uniform(), num_steps)
