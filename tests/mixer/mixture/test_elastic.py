"""Saved on some ranks, resumed on others: which samples come next."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixer import Hold, LossChange, Scheduled, Stream, Temperature, Uniform
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.loader import MixingLoader
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from tests.mixer.loaders import Numbers, Wandering, stacking_collator


class _Ranks:
    """All ranks of a run, one after the other."""

    def __init__(self, world_size: int, policy: Any, state: dict[str, Any] | None = None):
        self.loaders = []
        for rank in range(world_size):
            sources = [Numbers(number, length) for number, length in enumerate(LENGTHS)]
            streams = [Stream(f"s{number}", source) for number, source in enumerate(sources)]
            mixing = Mixing(Planner(streams, seed=3), policy(), Clock(10, sum(LENGTHS), Budget(epochs=9)))
            if state is not None:
                mixing.load_state_dict(state)
            options = MicroBatchOptions(2)
            self.loaders.append(MixingLoader(mixing, sources, stacking_collator, rank, world_size, options))

    def step(self, losses: Sequence[float]) -> list[tuple[int, int]]:
        samples = []
        for loader in self.loaders:
            batch = loader.next_batch()
            assert batch is not None
            for micro in batch.micro_batches:
                if not micro.is_padding:
                    samples += [(stream, index) for stream, index in micro.inputs["x"].tolist()]
            loader.mixing.observe(batch.plan, np.array(losses), batch.plan.counts)
        return sorted(samples)

    def state(self) -> dict[str, Any]:
        states = [loader.mixing.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]


def _losses(step: int) -> list[float]:
    return np.random.default_rng(step).uniform(1, 4, len(LENGTHS)).tolist()


LENGTHS = (41, 23, 60)
POLICIES: list[Any] = [
    lambda: Temperature(2.0),
    lambda: Scheduled([(0.0, {"s0": 1, "s1": 1, "s2": 0}), (1.0, {"s0": 0, "s1": 1, "s2": 3})]),
    lambda: Hold(Uniform(), 5),
    Wandering,
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_that_does_not_read_the_model_goes_on_with_the_same_sets(policy: Any) -> None:
    whole = _Ranks(2, policy)
    expected = [whole.step(_losses(step)) for step in range(36)]
    found, ranks = [], _Ranks(2, policy)
    for number, world_size in enumerate((2, 1, 4, 2, 3, 1)):
        if number:
            ranks = _Ranks(world_size, policy, ranks.state())
        found += [ranks.step(_losses(len(found))) for _ in range(6)]
    assert found == expected


@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4), seed=st.integers(0, 99))
@settings(max_examples=8)
def test_no_sample_is_lost_or_repeated_whatever_the_policy_sees(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    seen: list[tuple[int, int]] = []
    ranks = None
    for world_size in sizes:
        state = None if ranks is None else ranks.state()
        ranks = _Ranks(world_size, lambda: LossChange(num_warmup_observations=1), state)
        for _ in range(3):
            seen += ranks.step(random.uniform(1, 4, len(LENGTHS)).tolist())
    for number, length in enumerate(LENGTHS):
        times = np.bincount([index for stream, index in seen if stream == number], minlength=length)
        assert times.max() - times.min() <= 1  # every pass before the present one is complete
