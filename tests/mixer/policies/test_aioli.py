import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import Aioli, Decision, Floor, Hold, Smoothed, TrustRegion, WarmUp
from mixer.policies.shared.probe_round import interactions_of, normalised, probe_mixture
from replay.policies import ReplayRatio
from tests.mixer.policies.losses import mixture, observe

OWN = [0.5, 0.3, 0.2]
# Stream j lowers loss i by A_ij in a step of its own samples alone.
EFFECTS = np.array([[0.03, 0.01, 0.0], [0.0, 0.02, -0.01], [0.02, 0.0, 0.01]])


class World:
    """Losses that fall by `A p` in each step; evaluated after every so many steps."""

    def __init__(self, policy: Aioli, own: list[float] = OWN, effects: np.ndarray = EFFECTS, eval_steps: int = 1):
        self.policy, self.effects, self.eval_steps = policy, effects, eval_steps
        self.losses, self.step = np.full(len(own), 50.0), 0
        self.decisions = [policy.start(mixture(own))]

    def run(self, num_steps: int) -> list[Decision]:
        for _ in range(num_steps):
            before, weights = self.losses, self.decisions[-1].weights
            self.losses, self.step = before - self.effects @ weights, self.step + 1
            evaluation = self.losses if self.step % self.eval_steps == 0 else None
            seen = observe(self.step, before, evaluation=evaluation, weights=weights)
            self.decisions.append(self.policy.update(seen))
        return self.decisions


def stepped(own: list[float], learning_rate: float, effects: np.ndarray = EFFECTS) -> np.ndarray:
    """One step of the paper on the true interactions."""
    shifted = effects - min(effects.min(), 0.0)
    weights = np.array(own) * np.exp(learning_rate * shifted.sum(axis=0) / shifted.sum())
    return weights / weights.sum()


def test_phases_by_hand() -> None:
    # Two sweeps of two steps each, the second one backwards, then five steps of training; 0.8 and twice 0.1.
    weights = [d.weights.tolist() for d in World(Aioli(1.0, 2, 2, 5, 0.8)).run(18)]
    a, b, c = [0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]
    for step, expected in enumerate([a, a, b, b, c, c, c, c, b, b, a, a]):
        np.testing.assert_allclose(weights[step], expected)
    for step in range(12, 17):
        np.testing.assert_allclose(weights[step], stepped(OWN, 1.0))
    np.testing.assert_allclose(weights[17], a)


@pytest.mark.parametrize(("loss", "wait"), [("train", 0), ("evaluation", 4)])
def test_losses_that_fall_evenly_tell_the_interactions(loss: str, wait: int) -> None:
    world = World(Aioli(0.5, 4, 2, 3, 0.7, loss=loss), eval_steps=4)
    decisions = world.run(wait + 24)
    if wait:
        np.testing.assert_allclose(decisions[wait - 1].weights, OWN)
    np.testing.assert_allclose(decisions[-1].weights, stepped(OWN, 0.5), rtol=1e-9)


def test_the_weights_go_on_from_those_of_the_last_round() -> None:
    decisions = World(Aioli(0.5, 2, 1, 4)).run(6 + 4 + 6)
    np.testing.assert_allclose(decisions[6].weights, stepped(OWN, 0.5), rtol=1e-9)
    np.testing.assert_allclose(decisions[16].weights, stepped(list(stepped(OWN, 0.5)), 0.5), rtol=1e-9)


def test_without_normalising_the_step_has_the_unit_of_the_losses() -> None:
    decisions = World(Aioli(2.0, 3, 1, 4, normalise=False)).run(9)
    expected = np.array(OWN) * np.exp(2.0 * 3 * EFFECTS.sum(axis=0))  # falls are those of a probe of 3 steps
    np.testing.assert_allclose(decisions[-1].weights, expected / expected.sum(), rtol=1e-9)


def test_evaluations_that_are_rarer_than_probes_make_them_longer() -> None:
    decisions = World(Aioli(0.5, 2, 1, 3, loss="evaluation"), eval_steps=5).run(25)
    probed = [int(np.argmax(d.weights)) for d in decisions[5:20]]
    assert probed == [0] * 5 + [1] * 5 + [2] * 5
    np.testing.assert_allclose(decisions[20].weights, stepped(OWN, 0.5), rtol=1e-9)


def test_an_even_trend_is_taken_out_by_the_way_back() -> None:
    # Evaluation losses fall by a rate that itself falls evenly with time, whatever is trained on.
    policy = Aioli(50.0, 1, 2, 5, normalise=False, loss="evaluation")
    policy.start(mixture(OWN))
    losses = 50.0
    for step in range(1, 8):
        decision = policy.update(observe(step, evaluation=[losses] * 3))
        losses -= 1.0 - 0.1 * step
    np.testing.assert_allclose(decision.weights, OWN)


def test_before_the_first_round_the_own_weights_hold() -> None:
    decisions = World(Aioli(num_warmup_steps=3)).run(3)
    for early in decisions[:3]:
        np.testing.assert_allclose(early.weights, OWN)
    assert decisions[3].weights[0] == pytest.approx(0.75)


def test_a_single_stream_has_nothing_to_probe() -> None:
    world = World(Aioli(1.0, 2, 1, 2), [1.0], np.array([[0.1]]))
    assert all(d.weights.tolist() == [1.0] for d in world.run(9))


def test_a_stream_without_a_weight_is_not_probed() -> None:
    own, effects = [0.6, 0.0, 0.4], EFFECTS
    decisions = World(Aioli(1.0, 2, 1, 3, 0.8), own, effects).run(4)
    np.testing.assert_allclose(decisions[0].weights, [0.8, 0.0, 0.2])
    np.testing.assert_allclose(decisions[2].weights, [0.2, 0.0, 0.8])
    among = stepped([0.6, 0.4], 1.0, effects[:, [0, 2]])
    np.testing.assert_allclose(decisions[4].weights, [among[0], 0.0, among[1]], rtol=1e-9)


def test_the_probe_of_a_stream_that_left_is_passed_over() -> None:
    policy = Aioli(1.0, 2, 1, 9, 0.8)
    decision = policy.start(mixture(OWN))
    gone = {"weights": [0.4, 0.3, 0.3], "shares": [0.5, 0.0, 0.5]}
    for step in (1, 2):
        decision = policy.update(observe(step, [3.0 - step, math.nan, 2.0], **gone))
    np.testing.assert_allclose(decision.weights, [0.7 / 9, 0.3, 5.6 / 9])  # c in place of b, which waits with its 0.3
    for step in (3, 4):
        decision = policy.update(observe(step, [1.0, math.nan, 3.0 - step / 2], **gone))
    back = policy.update(observe(5, [1.0, 2.0, 1.0]))
    # Loss a fell by 2 under a's probe, loss c by 1 under its own; b's column is the mean of each row and is not moved.
    other = 0.1
    falls = np.array([[2.0, 1.0, 0.0], [0.0, 0.5, 1.0]])
    solved = (falls - other * falls.sum(axis=1, keepdims=True)) / (0.8 - other)
    shifted = solved - solved.min()
    a, c = np.exp(shifted.sum(axis=0) / shifted.sum())[[0, 2]] * [0.5, 0.2]
    np.testing.assert_allclose(back.weights, [0.7 * a / (a + c), 0.3, 0.7 * c / (a + c)], rtol=1e-9)


def test_losses_that_are_missing_move_nothing() -> None:
    policy = Aioli(1.0, 2, 1, 3)
    policy.start(mixture(OWN))
    for step in range(1, 8):
        decision = policy.update(observe(step, [math.nan] * 3))
    np.testing.assert_allclose(decision.weights, OWN)


@pytest.mark.parametrize("loss", ["train", "evaluation"])
@pytest.mark.parametrize("cut", range(0, 20, 3))
def test_it_goes_on_alike_after_a_resume_in_the_midst_of_a_phase(loss: str, cut: int) -> None:
    whole = World(Aioli(0.5, 3, 2, 4, loss=loss), eval_steps=2)
    expected = whole.run(40)
    first = World(Aioli(0.5, 3, 2, 4, loss=loss), eval_steps=2)
    first.run(cut)
    saved = json.dumps(first.policy.state_dict(), allow_nan=False)
    second = World(Aioli(0.5, 3, 2, 4, loss=loss), eval_steps=2)
    second.policy.load_state_dict(json.loads(saved))
    second.losses, second.step, second.decisions = first.losses, first.step, first.decisions
    for one, other in zip(second.run(40 - cut), expected, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probe_steps": 1}, "probe_steps must be a whole number, 2 or more"),
        ({"probe_share": 0.5}, "probe_share must be"),
        ({"probe_share": 1.0}, "probe_share=1 shows only the training loss of the probed stream"),
        ({"num_sweeps": 0}, "num_sweeps must be"),
        ({"training_steps": 0}, "training_steps must be"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"loss": "test"}, "loss must be 'train' or 'evaluation', got 'test'"),
    ],
)
def test_values_outside_their_ranges_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Aioli(**arguments)


class TestTheRunGoesOn:
    """A decision for streams that have nothing left would end it."""

    @staticmethod
    def planned(policy: Aioli, streams: list[Stream], num_steps: int) -> np.ndarray:
        mixing = Mixing(Planner(streams, 0), policy, Clock(8, 8 * num_steps, Budget(samples=8 * num_steps)))
        counts = []
        while mixing.clock.progress < 1.0 and (plan := mixing.next_plan()) is not None:
            losses = 3.0 - 0.001 * plan.index * np.arange(1, len(streams) + 1)
            if plan.index % 7 == 0:
                mixing.observe_evaluation(dict(zip(mixing.names, losses.tolist(), strict=True)))
            mixing.observe(plan, np.where(plan.counts > 0, losses, np.nan), plan.counts)
            counts.append(plan.counts)
        return np.array(counts)

    @pytest.mark.parametrize("arguments", [{}, {"loss": "evaluation", "probe_share": 1.0}])
    def test_when_all_that_were_probed_leave_together(self, arguments: dict) -> None:
        early = [Stream(name, range(99), leaves_at=0.505) for name in "ab"]
        late = [Stream(name, range(99), enters_at=0.505) for name in "cd"]
        counts = self.planned(Aioli(**arguments), early + late, 960)
        assert len(counts) == 960
        assert counts[485].tolist() == [0, 0, 4, 4]  # the weights of the training
        assert counts[600:, 2:].max() / 8 > 0.7  # and later on probes of the new ones

    @pytest.mark.parametrize("share", [0.75, 1.0])
    def test_when_the_probed_one_is_used_up(self, share: float) -> None:
        streams = [Stream("short", range(40), max_epochs=1), Stream("a", range(99)), Stream("b", range(99))]
        policy = Aioli(1.0, 12, 1, 20, share, loss="evaluation")
        counts = self.planned(policy, streams, 200)
        assert counts.sum() == 200 * 8
        assert counts[:, 0].sum() == 40

    def test_what_was_learned_rules_in_place_of_a_probe_of_nothing(self) -> None:
        world = World(Aioli(1.0, 2, 1, 3, 1.0, loss="evaluation"), eval_steps=2)
        learned = world.run(2 + 6 + 3 + 1)[8].weights
        assert abs(learned - OWN).max() > 0.02
        assert world.decisions[-1].weights.tolist() == [1.0, 0.0, 0.0]
        left = world.policy.update(observe(13, weights=[1.0, 0.0, 0.0], shares=[0.0, 0.5, 0.5]))
        among = learned[1:] / learned[1:].sum()
        np.testing.assert_allclose(left.weights, [0.5, *(0.5 * among)])

    def test_a_stream_that_has_not_entered_is_not_probed(self) -> None:
        streams = [Stream("late", range(99), weight=2.0, enters_at=0.9)]
        streams += [Stream(name, range(99), weight=1.0) for name in "ab"]
        counts = self.planned(Aioli(1.0, 4, 1, 10), streams, 100)
        assert counts[:4].sum(axis=0).tolist() == [0, 24, 8]
        assert counts[4:8].sum(axis=0).tolist() == [0, 8, 24]


class TestWrapped:
    @pytest.mark.parametrize("wrap", [Hold, Smoothed, TrustRegion, WarmUp, lambda policy: Hold(Floor(policy, 0.1))])
    @pytest.mark.parametrize("make", [Aioli, lambda: ReplayRatio(0.1, Aioli())], ids=["alone", "replay"])
    def test_what_would_move_its_probes_refuses_it(self, wrap, make) -> None:
        with pytest.raises(
            ValueError, match=r"policy must allow changes .*, got .*Aioli.*, which plans probes .* without"
        ):
            wrap(make())

    def test_a_floor_leaves_the_probes_apart(self) -> None:
        decision = Floor(Aioli(probe_share=0.8), 0.1).start(mixture(OWN))
        np.testing.assert_allclose(decision.weights, [0.66, 0.17, 0.17])


def test_a_thousand_streams() -> None:
    policy = Aioli(1.0, 2, 1, 3)
    decision = policy.start(mixture([1.0] * 1000))
    assert decision.weights.max() == pytest.approx(0.75)
    assert policy.update(observe(1, np.ones(1000))).weights.sum() == pytest.approx(1.0)


class TestInteractions:
    @given(
        entries=st.lists(st.floats(-5, 5), min_size=12, max_size=12),
        share=st.floats(0.51, 1.0),
    )
    def test_they_are_what_the_falls_came_from(self, entries: list[float], share: float) -> None:
        true = np.array(entries).reshape(4, 3)
        probes = np.stack([probe_mixture(3, j, share) for j in range(3)], axis=1)
        np.testing.assert_allclose(interactions_of(true @ probes, share), true, atol=1e-12)

    def test_an_unknown_column_counts_as_the_mean_and_an_unknown_row_not_at_all(self) -> None:
        falls = np.array([[1.0, np.nan, 3.0], [np.nan] * 3])
        np.testing.assert_allclose(interactions_of(falls, 1.0), [[1.0, 2.0, 3.0]])

    def test_normalising_by_hand(self) -> None:
        np.testing.assert_allclose(normalised(np.array([[-1.0, 1.0], [0.0, 2.0]])), [[0.0, 1 / 3], [1 / 6, 1 / 2]])
        np.testing.assert_allclose(normalised(np.array([[1.0, 3.0]])), [[0.25, 0.75]])  # none is negative: no shift
        np.testing.assert_allclose(normalised(np.full((2, 2), -3.0)), np.zeros((2, 2)))
