"""FAMO with the trainer's losses after the step: what it does in a run is what its equations give by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixer import FAMO, Decision, Ledger, Mixture, Observation
from tests.mixer.comparing import Tagger, build, train_by_hand

STEPS = 5


class Watched(FAMO):
    """Keeps what it sees and decides."""

    look: Callable[[Observation], None]

    def start(self, mixture: Mixture) -> Decision:
        self.mixture, self.seen = mixture, []
        self.decisions = [super().start(mixture)]
        return self.decisions[0]

    def update(self, observation: Observation) -> Decision:
        self.look(observation)
        self.seen.append(observation)
        self.decisions.append(super().update(observation))
        return self.decisions[-1]


@pytest.mark.parametrize("acts_on", ["sampling", "loss"])
def test_a_run_of_a_few_steps(tmp_path: Path, acts_on: Any) -> None:
    policy = Watched(learning_rate=0.3, acts_on=acts_on)
    trainer = build(tmp_path, policy, args={"max_steps": STEPS, "learning_rate": 0.05})
    after = [losses for _, losses in train_by_hand(trainer, Tagger(seed=7), Tagger())]
    assert len(policy.seen) == len(after) == STEPS

    # Streams are seen before and after each step but the last, the rest of an epoch, which does not have them all; and
    # steps lower their losses: there is something to go by.
    before = np.array([seen.losses for seen in policy.seen])
    np.testing.assert_allclose([seen.losses_after for seen in policy.seen], after, rtol=0, atol=1e-12)
    assert np.isfinite(before[:-1]).all()
    assert np.isnan(before[-1]).any()
    assert np.nanmean(before - after) > 1e-3

    # The equations, given the losses by hand, decide the same. The first decision by the formula itself: one step of
    # Adam is the learning rate along the sign of the gradient, z is even before it, and L is the loss after the step.
    by_hand = FAMO(learning_rate=0.3, acts_on=acts_on)
    expected = [by_hand.start(policy.mixture)]
    for seen, losses in zip(policy.seen, after, strict=True):
        expected.append(by_hand.update(replace(seen, losses_after=losses)))
    falls = np.log(before[0] + 1e-8) - np.log(after[0] + 1e-8)
    gradient = (falls - falls.mean()) / 3
    factors = np.exp(-0.3 * gradient / (abs(gradient) + 1e-8)) / (after[0] + 1e-8)
    own = policy.mixture.weights
    if acts_on == "sampling":
        np.testing.assert_allclose(policy.decisions[1].weights, own * factors / (own * factors).sum())
    else:
        np.testing.assert_allclose(policy.decisions[1].loss_weights, factors / (own * factors).sum())
    for found, wanted in zip(policy.decisions, expected, strict=True):
        np.testing.assert_allclose(found.weights, wanted.weights, rtol=1e-9)
        if acts_on == "loss":
            np.testing.assert_allclose(found.loss_weights, wanted.loss_weights, rtol=1e-9)

    # And they rule the steps: that after each decision but the last.
    rows = Ledger(tmp_path / "ledger").to_pandas().pivot_table(index="step", columns="stream", values="weight")
    np.testing.assert_allclose(rows[["a", "b", "c"]], [decision.weights for decision in policy.decisions[:-1]])
    drawn = np.array([decision.weights for decision in policy.decisions])
    assert (np.ptp(drawn, axis=0) > 1e-3).all() == (acts_on == "sampling")
