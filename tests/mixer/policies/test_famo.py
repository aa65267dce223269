import math
from typing import Any

import numpy as np

from mixer.policies import FAMO, Decision
from tests.mixer.policies.observed import led, observe


def run(policy: FAMO, pairs: list[tuple[Any, Any]], own: tuple[float, ...] = (0.5, 0.5)) -> list[Decision]:
    batches = [observe(step, before, losses_after=after) for step, (before, after) in enumerate(pairs, 1)]
    return led(policy, batches, own)


def test_by_hand() -> None:
    # Δ = (log 2 - log 1, 0) and z = (1/2, 1/2), so δ = (log 2)/4 · (1, -1). The first step of Adam is β δ / |δ|: the
    # logits are (-β, β), z = (1, e^2β) / (1 + e^2β), and w ∝ z / L with L = (1, 3) after the step.
    _, decision = run(FAMO(0.025, 0.01, loss_decay=0.0), [([2.0, 3.0], [1.0, 3.0])])
    first, second = 1.0, math.exp(0.05) / 3
    np.testing.assert_allclose(decision.weights, [first / (first + second), second / (first + second)], rtol=1e-6)
    # c z / L of eq. 11 sums to 1, here to K; with a learning rate of 0 z is even.
    _, decision = run(FAMO(0.0, loss_decay=0.0, acts_on="loss"), [([9.0, 9.0], [1.0, 4.0])])
    np.testing.assert_allclose(decision.loss_weights, [1.6, 0.4], rtol=1e-6)


def test_the_logits_are_those_of_torch() -> None:
    import torch

    before, after = np.exp(np.random.default_rng(0).normal(size=(2, 30, 3)))
    policy = FAMO(0.1, 0.05, lower_bound=-0.5)
    run(policy, list(zip(before, after, strict=True)), (0.2, 0.3, 0.5))
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([logits], lr=0.1, weight_decay=0.05)
    for falls in torch.from_numpy(np.log(before + 0.5 + 1e-8) - np.log(after + 0.5 + 1e-8)):
        adam.zero_grad()
        (torch.softmax(logits, 0) @ falls).backward()
        adam.step()
    np.testing.assert_allclose(policy.state_dict()["logits"], logits.detach().numpy(), rtol=1e-9)


def test_a_stream_without_both_losses_keeps_its_logit() -> None:
    policy, alone = FAMO(), FAMO()
    run(policy, [([2.0, 3.0, 5.0], [1.0, 3.0, math.nan]), ([2.0, 3.0, math.inf], [1.0, 3.0, 2.0])], (0.4, 0.4, 0.2))
    run(alone, [([2.0, 3.0], [1.0, 3.0])] * 2)
    assert policy.state_dict()["logits"] == [*alone.state_dict()["logits"], 0.0]


def test_without_losses_after_the_step_nothing_moves_and_those_below_their_bound_count_as_missing() -> None:
    policy, once, bounded = FAMO(0.5), FAMO(0.5), FAMO(lower_bound=1.0)
    run(policy, [([2.0, 3.0], [1.0, 3.0]), ([2.0, 3.0], None)])
    run(once, [([2.0, 3.0], [1.0, 3.0])])
    assert policy.state_dict() == once.state_dict()
    run(bounded, [([2.0, 3.0], [0.5, 2.0])])
    assert bounded.state_dict()["num_steps"] == [0, 1]
