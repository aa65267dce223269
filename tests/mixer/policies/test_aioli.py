import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.measurements import Loss
from mixer.policies import Aioli, Decision, Floor, Hold, Smoothed, TrustRegion, WarmUp
from mixer.policies.shared.probe_round import interactions_of, probe_mixture
from tests.mixer.policies.observed import mixture, observe

OWN = [0.5, 0.3, 0.2]
# Stream j lowers loss i by A_ij in a step of its own samples alone.
EFFECTS = np.array([[0.03, 0.01, 0.0], [0.0, 0.02, -0.01], [0.02, 0.0, 0.01]])


class World:
    """Losses that fall by `A p` in each step; evaluated after every so many steps."""

    def __init__(self, policy: Aioli, own: list[float] = OWN, eval_steps: int = 1):
        self.policy, self.eval_steps, self.losses, self.step = policy, eval_steps, np.full(len(own), 50.0), 0
        self.decisions = [policy.start(mixture(own))]

    def run(self, num_steps: int) -> list[Decision]:
        for _ in range(num_steps):
            before, weights = self.losses, self.decisions[-1].weights
            self.losses, self.step = before - EFFECTS @ weights, self.step + 1
            evaluation = self.losses if self.step % self.eval_steps == 0 else None
            seen = observe(self.step, before, evaluation_losses=evaluation, weights=weights)
            self.decisions.append(self.policy.update(seen))
        return self.decisions


def stepped(own: Any, learning_rate: float, effects: np.ndarray = EFFECTS) -> np.ndarray:
    """One step of the paper on the true interactions."""
    shifted = effects - min(effects.min(), 0.0)
    weights = np.array(own) * np.exp(learning_rate * shifted.sum(axis=0) / shifted.sum())
    return weights / weights.sum()


class TestRounds:
    def test_phases_by_hand(self) -> None:
        # Two sweeps of two steps each, the second one backwards, then five steps of training; 0.8 and twice 0.1.
        own, *weights = [d.weights.tolist() for d in World(Aioli(1.0, 2, 2, 5, 0.8, num_warmup_steps=1)).run(19)]
        assert own == OWN
        a, b, c = [0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]
        np.testing.assert_allclose(weights[:12], [a, a, b, b, c, c, c, c, b, b, a, a])
        np.testing.assert_allclose(weights[12:17], [stepped(OWN, 1.0)] * 5)
        np.testing.assert_allclose(weights[17], a)

    @pytest.mark.parametrize(("loss", "wait"), [("train", 0), ("evaluation", 4)])
    def test_losses_that_fall_evenly_tell_the_interactions(self, loss: Any, wait: int) -> None:
        decisions = World(Aioli(0.5, 4, 2, 3, 0.7, loss=loss), eval_steps=4).run(wait + 24)
        if wait:
            np.testing.assert_allclose(decisions[wait - 1].weights, OWN)
        np.testing.assert_allclose(decisions[-1].weights, stepped(OWN, 0.5), rtol=1e-9)

    def test_without_normalising_the_step_has_the_unit_of_the_losses(self) -> None:
        decisions = World(Aioli(2.0, 3, 1, 4, normalise=False)).run(9)
        expected = np.array(OWN) * np.exp(2.0 * 3 * EFFECTS.sum(axis=0))  # falls are those of a probe of 3 steps
        np.testing.assert_allclose(decisions[-1].weights, expected / expected.sum(), rtol=1e-9)

    def test_evaluations_that_are_rarer_than_probes_make_them_longer(self) -> None:
        decisions = World(Aioli(0.5, 2, 1, 3, loss="evaluation"), eval_steps=5).run(25)
        assert [int(np.argmax(d.weights)) for d in decisions[5:20]] == [0] * 5 + [1] * 5 + [2] * 5
        np.testing.assert_allclose(decisions[20].weights, stepped(OWN, 0.5), rtol=1e-9)

    def test_an_even_trend_is_taken_out_by_the_way_back(self) -> None:
        # Evaluation losses fall by a rate that itself falls evenly with time, whatever is trained on.
        policy, losses = Aioli(50.0, 1, 2, 5, normalise=False, loss="evaluation"), 50.0
        policy.start(mixture(OWN))
        for step in range(1, 8):
            decision = policy.update(observe(step, evaluation_losses=[losses] * 3))
            losses -= 1.0 - 0.1 * step
        np.testing.assert_allclose(decision.weights, OWN)


class TestStreams:
    def test_one_without_a_weight_is_not_probed(self) -> None:
        decisions = World(Aioli(1.0, 2, 1, 3, 0.8), [0.6, 0.0, 0.4]).run(4)
        np.testing.assert_allclose(decisions[0].weights, [0.8, 0.0, 0.2])
        np.testing.assert_allclose(decisions[2].weights, [0.2, 0.0, 0.8])
        among = stepped([0.6, 0.4], 1.0, EFFECTS[:, [0, 2]])
        np.testing.assert_allclose(decisions[4].weights, [among[0], 0.0, among[1]], rtol=1e-9)

    def test_the_probe_of_one_that_left_is_passed_over(self) -> None:
        policy = Aioli(1.0, 2, 1, 9, 0.8)
        policy.start(mixture(OWN))
        gone = {"weights": [0.4, 0.3, 0.3], "shares": [0.5, 0.0, 0.5]}
        for step in (1, 2):
            decision = policy.update(observe(step, [3.0 - step, math.nan, 2.0], **gone))
        # c in place of b, which waits with its 0.3
        np.testing.assert_allclose(decision.weights, [0.7 / 9, 0.3, 5.6 / 9])
        for step in (3, 4):
            policy.update(observe(step, [1.0, math.nan, 3.0 - step / 2], **gone))
        back = policy.update(observe(5, [1.0, 2.0, 1.0]))
        # Loss a fell by 2 under a's probe, loss c by 1 under its own; b's column is the mean of each row and not moved.
        falls = np.array([[2.0, 1.0, 0.0], [0.0, 0.5, 1.0]])
        solved = (falls - 0.1 * falls.sum(axis=1, keepdims=True)) / (0.8 - 0.1)
        shifted = solved - solved.min()
        a, c = np.exp(shifted.sum(axis=0) / shifted.sum())[[0, 2]] * [0.5, 0.2]
        np.testing.assert_allclose(back.weights, [0.7 * a / (a + c), 0.3, 0.7 * c / (a + c)], rtol=1e-9)

    def test_what_was_learned_rules_in_place_of_a_probe_of_nothing(self) -> None:
        world = World(Aioli(1.0, 2, 1, 3, 1.0, loss="evaluation"), eval_steps=2)
        learned = world.run(2 + 6 + 3 + 1)[8].weights
        assert abs(learned - OWN).max() > 0.02
        assert world.decisions[-1].weights.tolist() == [1.0, 0.0, 0.0]
        left = world.policy.update(observe(13, weights=[1.0, 0.0, 0.0], shares=[0.0, 0.5, 0.5]))
        np.testing.assert_allclose(left.weights, [0.5, *(0.5 * learned[1:] / learned[1:].sum())])


def planned(policy: Aioli, streams: list[tuple[str, dict[str, Any]]], num_steps: int) -> np.ndarray:
    """The samples of each stream in each step of a run of batches of 8."""
    from mixer.mixture.clock import Budget, Clock
    from mixer.mixture.controller import Mixing
    from mixer.mixture.planner import Planner
    from mixer.mixture.stream import Stream

    made = [Stream(name, range(99), **options) for name, options in streams]
    mixing = Mixing(Planner(made, 0), policy, Clock(8, 8 * num_steps, Budget(samples=8 * num_steps)))
    counts = []
    while mixing.clock.progress < 1.0 and (plan := mixing.next_plan()) is not None:
        losses = 3.0 - 0.001 * plan.index * np.arange(1, len(streams) + 1)
        if plan.index % 7 == 0:
            mixing.observe_evaluation(dict(zip(mixing.names, losses.tolist(), strict=True)))
        mixing.observe(plan, plan.counts, {Loss: np.where(plan.counts > 0, losses, np.nan)})
        counts.append(plan.counts)
    return np.array(counts)


@pytest.mark.parametrize("arguments", [{}, {"loss": "evaluation", "probe_share": 1.0}])
def test_the_run_goes_on_when_all_that_were_probed_leave_together(arguments: dict[str, Any]) -> None:
    """A decision for streams that have nothing left would end it."""
    streams = [(name, {"leaves_at" if name in "ab" else "enters_at": 0.505}) for name in "abcd"]
    counts = planned(Aioli(**arguments), streams, 960)
    assert len(counts) == 960
    assert counts[485].tolist() == [0, 0, 4, 4]  # the weights of the training
    assert counts[600:, 2:].max() / 8 > 0.7  # and later on probes of the new ones


@pytest.mark.parametrize("wrap", [Hold, Smoothed, TrustRegion, WarmUp, lambda policy: Hold(Floor(policy, 0.1))])
def test_a_wrapper_that_would_move_its_probes_refuses_it(wrap: Any) -> None:
    from replay.policies import ReplayRatio

    for made in (Aioli(), ReplayRatio(0.1, Aioli())):
        with pytest.raises(ValueError, match=r"policy must allow changes .*, got .*Aioli.*, which plans probes"):
            wrap(made)
    decision = Floor(Aioli(probe_share=0.8), 0.1).start(mixture(OWN))  # which leaves them apart
    np.testing.assert_allclose(decision.weights, [0.66, 0.17, 0.17])


@given(entries=st.lists(st.floats(-5, 5), min_size=12, max_size=12), share=st.floats(0.51, 1.0))
def test_interactions_are_what_the_falls_came_from(entries: list[float], share: float) -> None:
    true = np.array(entries).reshape(4, 3)
    probes = np.stack([probe_mixture(3, j, share) for j in range(3)], axis=1)
    np.testing.assert_allclose(interactions_of(true @ probes, share), true, atol=1e-12)
    falls = np.array([[1.0, np.nan, 3.0], [np.nan] * 3])  # unknown columns count as the mean, unknown rows nothing
    np.testing.assert_allclose(interactions_of(falls, 1.0), [[1.0, 2.0, 3.0]])
