"""What policies say of themselves reproduces what they decided."""

import numpy as np

from mixer.policies import ADO, ODM, Decision, GroupDRO, Policy
from mixer.policies.odm import exploration
from tests.mixer.made_measurements import measured
from tests.mixer.policies.observed import mixture, observe

OWN, COUNTS = np.array([0.5, 0.3, 0.2]), np.array([5, 3, 2])
EXPONENTS = np.array([0.2, 0.4, 0.8])


def follow(policy: Policy, num_steps: int) -> Decision:
    """Leads a policy through losses that fall as different powers."""
    decision = policy.start(mixture(OWN.tolist(), [100, 50, 20]))
    for step in range(1, num_steps + 1):
        losses, shares = 1.0 + 3.0 * (1.0 + step * COUNTS) ** -EXPONENTS, decision.weights / decision.weights.sum()
        seen = observe(step, losses.tolist(), COUNTS.tolist(), weights=shares, gradients=measured(3, seed=step))
        decision = policy.update(seen)
    return decision


def test_group_dro() -> None:
    policy = GroupDRO(0.5)
    decision, terms = follow(policy, 7), policy.explain()
    ratios = np.asarray(terms["alpha"]) / np.asarray(terms["own weight"])
    np.testing.assert_allclose(decision.loss_weights / decision.loss_weights.sum(), ratios / ratios.sum())
    np.testing.assert_allclose(terms["last loss"], 1 + 3 * (1 + 7 * COUNTS) ** -EXPONENTS)


def test_odm() -> None:
    policy = ODM("code", num_warmup_steps=0)
    decision, reward = follow(policy, 7), np.asarray(policy.explain()["reward"])
    explored = 3 * exploration(3, 8)
    np.testing.assert_allclose(decision.weights, (1 - explored) * reward / reward.sum() + explored / 3)


def test_ado_without_the_mean_mixture() -> None:
    policy = ADO("paper", 6, 1, 0, mean_share=0.0, floor=0.0)
    decision, terms = follow(policy, 12), policy.explain()
    scores = np.log(OWN) + 0.5 * np.log(np.asarray(terms["credit"])) + np.asarray(terms["log slope"])
    np.testing.assert_allclose(decision.weights, np.exp(scores) / np.exp(scores).sum())
