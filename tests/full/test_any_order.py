"""Planner, controller and replay buffer together, in any order of steps."""

import json
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from mixer.measurements import Loss
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.policies import GroupDRO, LossChange, Policy, Uniform
from mixer.schedules import Constant
from replay import ReplayBuffer
from replay.policies import ReplayRatio

_NUMBERS = st.sampled_from([0.0, 0.3, 1.0, 1e-9, 1e9])
_POLICIES: dict[str, Any] = {"Uniform": Uniform, "LossChange": LossChange, "GroupDRO": GroupDRO}


class Walk:
    """A run without a model, whose steps can be taken in any order.

    Args:
        lengths: Lengths of the streams; one of them enters later and one leaves, where there are enough.
        policy: Name of the policy.
        capacity: Capacity of a replay buffer among the streams; 0 for none.
        batch_size: Samples of a step.
        world_size: Number of ranks that share each plan.
    """

    def __init__(self, lengths: list[int], policy: str, capacity: int, batch_size: int, world_size: int):
        self._lengths, self._policy_name, self._capacity = lengths, policy, capacity
        self.batch_size, self.world_size = max(batch_size, world_size), world_size
        self.mixing = self._new_mixing()
        self.pending: StepPlan | None = None
        self.drawn: dict[str, list[int]] = {name: [] for name in self.mixing.names}
        self.num_steps = 0

    def _new_mixing(self) -> Mixing:
        streams = [
            Stream(
                f"s{number}",
                range(length),
                enters_at=0.3 if number == 1 else 0.0,
                leaves_at=0.7 if number == 2 else 1.0,
            )
            for number, length in enumerate(self._lengths)
        ]
        policy: Policy = _POLICIES[self._policy_name]()
        self.buffer = None
        if self._capacity:
            self.buffer = ReplayBuffer(self._capacity, seed=3)
            streams.append(Stream("memory", self.buffer))
            policy = ReplayRatio(0.25, policy)
        clock = Clock(self.batch_size, sum(self._lengths), Budget(epochs=4))
        size = BatchSize(Constant(), self.batch_size, self.world_size)
        mixing = Mixing(Planner(streams, 5), policy, clock, size)
        self._fill = None
        if self.buffer is not None:
            self._fill = self.buffer.follow("memory", streams, lambda: self.mixing.planner)
        return mixing

    # ---- Steps ----

    def update(self, losses: list[float]) -> None:
        """Plans a step, looks at it, and has it observed; nothing at the end of the run."""
        if self.mixing.clock.progress >= 1.0:
            return
        before = self.mixing.seen.copy()
        plan = self.mixing.next_plan()
        if plan is None:
            return
        self._check_plan(plan, before)
        losses = [losses[number % len(losses)] for number in range(len(self.mixing.names))]
        observed = np.where(plan.counts > 0, np.array(losses, dtype=np.float64), np.nan)
        self.mixing.observe(plan, plan.counts * 3, {Loss: observed})
        if self._fill is not None:
            self._fill(plan)
        self.num_steps += 1
        self._check_state()

    def set_weights(self, weights: list[float] | None) -> None:
        """Rules by hand, if any stream that is there has a weight; else the policy rules again."""
        names = self.mixing.names
        values = None if weights is None else [weights[number % len(weights)] for number in range(len(names))]
        if values is not None and (names[-1] == "memory" or not sum(values) > 0):
            values = None
        self.mixing.set_weights(values)

    def set_batch_size(self, batch_size: int | None) -> None:
        """Changes the size by hand; no smaller than the number of ranks."""
        self.mixing.set_batch_size(None if batch_size is None else max(batch_size, self.world_size))

    def save_and_load(self) -> None:
        """Goes on in another controller from what this one saved; it must be the same to the bit."""
        state, before = self.mixing.state_dict(), self.buffer
        text = json.dumps(state, allow_nan=False)
        saved = self.mixing
        with tempfile.TemporaryDirectory() as folder:
            if before is not None:
                before.save(Path(folder))
            self.mixing = self._new_mixing()
            if self.buffer is not None:
                self.buffer.load(Path(folder))
                assert self.buffer.entries["number"].tolist() == before.entries["number"].tolist()
        self.mixing.load_state_dict(json.loads(text))
        assert self.mixing.state_dict() == state, "a state that was loaded is not the one that was saved"
        assert self.mixing.weights == saved.weights
        assert self.mixing.batch_size == saved.batch_size

    # ---- What has to hold ----

    def _check_plan(self, plan: StepPlan, before: Any) -> None:
        mixing, planner = self.mixing, self.mixing.planner
        assert (plan.counts >= 0).all()
        assert plan.counts.sum() > 0, "a plan without samples"
        assert plan.staleness == 0
        assert (mixing.seen - before == plan.counts).all()
        assert abs(plan.weights.sum() - 1.0) < 1e-9
        assert not plan.counts[plan.weights == 0].any() or plan.are_additional is not None
        shares = [planner.rank_share(plan, rank, self.world_size) for rank in range(self.world_size)]
        for number, name in enumerate(mixing.names):
            whole = [(part.positions, part.indices) for share in shares for part in share if part.stream_id == number]
            positions = sorted(int(position) for found, _ in whole for position in found)
            start = int(plan.starts[number])
            assert positions == list(range(start, start + int(plan.counts[number]))), "ranks do not share out the plan"
            if name != "memory":
                pairs = sorted(
                    (int(p), int(i)) for found, indices in whole for p, i in zip(found, indices, strict=True)
                )
                self.drawn[name] += [index for _, index in pairs]
        sizes = [sum(len(part.indices) for part in share) for share in shares]
        assert max(sizes) - min(sizes) <= 1, "ranks have shares of other sizes"

    def _check_state(self) -> None:
        mixing = self.mixing
        for number, length in enumerate(self._lengths):
            drawn = self.drawn[f"s{number}"]
            assert len(drawn) == mixing.seen[number]
            for start in range(0, len(drawn) - length + 1, length):
                assert sorted(drawn[start : start + length]) == list(range(length)), "an epoch of a stream is not exact"
            rest = drawn[len(drawn) // length * length :]
            assert len(set(rest)) == len(rest), "a sample came twice in an epoch"
        if self.buffer is not None:
            assert len(self.buffer) <= self._capacity
            assert len(set(self.buffer.entries["number"].tolist())) == len(self.buffer)


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
