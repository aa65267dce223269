"""Hostile input: a few cases of each target, and planner, controller and buffer in any order of steps."""

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from benchmarks.tools.fuzz import command
from benchmarks.tools.fuzz.walk import Walk

_NUMBERS = st.sampled_from([0.0, 0.3, 1.0, 1e-9, 1e9])


@pytest.mark.parametrize("name", [name for name in command._SHARES if not name.startswith("planner")])
def test_a_few_cases(name: str, tmp_path: Path) -> None:
    case = command.targets(tmp_path)[name]
    outcome = command.run_cases(name, case, range(25), seed=7)
    assert outcome.num_cases == 25
    assert outcome.broken == {}


class AnyOrder(RuleBasedStateMachine):
    """Steps of a run in any order; `Walk` checks coverage, ranks' shares and states that go on to the bit."""

    @initialize(
        lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
        policy=st.sampled_from(["Uniform", "LossChange", "GroupDRO"]),
        capacity=st.sampled_from([0, 1, 5]),
        batch_size=st.integers(1, 12),
        world_size=st.integers(1, 3),
    )
    def begin(self, lengths: list[int], policy: str, capacity: int, batch_size: int, world_size: int) -> None:
        self.walk = Walk(lengths, policy, capacity, batch_size, world_size)

    @rule(losses=st.lists(st.floats(0, 1e30) | st.just(float("nan")), min_size=1, max_size=4))
    def update(self, losses: list[float]) -> None:
        self.walk.update(losses)

    @rule(weights=st.none() | st.lists(_NUMBERS, min_size=1, max_size=4))
    def set_weights(self, weights: list[float] | None) -> None:
        self.walk.set_weights(weights)

    @rule(batch_size=st.none() | st.integers(1, 50))
    def set_batch_size(self, batch_size: int | None) -> None:
        self.walk.set_batch_size(batch_size)

    @rule()
    def save_and_load(self) -> None:
        self.walk.save_and_load()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis.settings(max_examples=25, stateful_step_count=10, deadline=None)
