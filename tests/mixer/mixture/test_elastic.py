"""Saved on some ranks, resumed on others: which samples come next."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer import Hold, LossChange, Scheduled, Temperature, Uniform
from mixer.measurements import Loss
from tests.mixer.loaders import Numbers, Wandering, make_loader, stacking_collator

LENGTHS = (41, 23, 60)


class Ranks:
    """All ranks of a run, one after the other."""

    def __init__(self, world_size: int, policy: Any, state: dict[str, Any] | None = None):
        datasets = [Numbers(stream, length) for stream, length in enumerate(LENGTHS)]
        options: dict[str, Any] = {"batch_size": 10, "num_epochs": 9, "collator": stacking_collator}
        self.loaders = [make_loader(0, r, world_size, datasets, policy(), **options) for r in range(world_size)]
        for loader in self.loaders if state is not None else []:
            loader.mixing.load_state_dict(state)

    def step(self, losses: Sequence[float]) -> list[tuple[int, int]]:
        samples: list[tuple[int, int]] = []
        for loader in self.loaders:
            batch = loader.next_batch()
            for micro in batch.micro_batches:
                if not micro.is_padding:
                    samples += map(tuple, micro.inputs["x"].tolist())
            loader.mixing.observe(batch.plan, batch.plan.counts, {Loss: np.array(losses)})
        return sorted(samples)

    def state(self) -> dict[str, Any]:
        states = [loader.mixing.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]


POLICIES: list[Any] = [
    lambda: Temperature(2.0),
    lambda: Scheduled([(0.0, {"s0": 1, "s1": 1, "s2": 0}), (1.0, {"s0": 0, "s1": 1, "s2": 3})]),
    lambda: Hold(Uniform(), 5),
    Wandering,
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_that_does_not_read_the_model_goes_on_with_the_same_sets(policy: Any) -> None:
    losses = np.random.default_rng(0).uniform(1, 4, (24, len(LENGTHS))).tolist()
    whole, ranks, found = Ranks(2, policy), Ranks(2, policy), []
    for world_size in (2, 1, 4, 3):
        ranks = Ranks(world_size, policy, ranks.state())
        found += [ranks.step(losses[len(found) + step]) for step in range(6)]
    assert found == [whole.step(own) for own in losses]


@settings(max_examples=8)
@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_no_sample_is_lost_or_repeated_whatever_the_policy_sees(sizes: list[int], seed: int) -> None:
    random, seen, state = np.random.default_rng(seed), [], None
    for world_size in sizes:
        ranks = Ranks(world_size, lambda: LossChange(num_warmup_observations=1), state)
        for _ in range(3):
            seen += ranks.step(random.uniform(1, 4, len(LENGTHS)).tolist())
        state = ranks.state()
    for number, length in enumerate(LENGTHS):
        times = np.bincount([index for stream, index in seen if stream == number], minlength=length)
        assert times.max() - times.min() <= 1  # every pass before the present one is complete
