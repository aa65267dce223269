"""What has to be exact at any size, tried at the largest: for `benchmarks.scale`."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from benchmarks.scale.planning import share_counts
from benchmarks.speed.competitors import LazyRows
from mixer.distributed.collectives import RankSync
from mixer.ledger.ledger import Ledger
from mixer.loading.loaded_step import StepCounts
from mixer.mixture.apportion import apportion
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.permutation import Order
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.policies import Proportional
from mixer.trainer.confirmation import confirm

NUM_SAMPLES = 10**13
_BATCH_SIZE = 10**9 + 7
_FLOAT_LIMIT = 2**53


@dataclass(frozen=True)
class Check:
    """Something that has to hold.

    Args:
        what: What.
        found: What was found, in words.
        holds: Whether it does.
    """

    what: str
    found: str
    holds: bool


def whole_run(num_samples: int = NUM_SAMPLES, batch_size: int = _BATCH_SIZE) -> tuple[Mixing, float]:
    """Plans all steps of one pass over streams of very different sizes.

    Args:
        num_samples: Samples of all streams.
        batch_size: Samples of a step.

    Returns:
        The controller at the end; by how many samples a stream was off its share at most, by whole numbers.
    """
    sizes = [num_samples - 10**12 - 10**7 - 1, 10**12, 10**7, 1]
    streams = [Stream(f"stream-{number}", LazyRows(size)) for number, size in enumerate(sizes)]
    clock = Clock(batch_size, num_samples, Budget(samples=num_samples))
    mixing, worst = Mixing(Planner(streams, seed=0), Proportional(), clock), 0.0
    while clock.progress < 1.0 and (plan := mixing.next_plan()) is not None:
        mixing.observe(plan, np.zeros(len(sizes), dtype=np.int64))
        done = int(mixing.seen.sum())
        off = (abs(int(seen) * num_samples - done * size) for seen, size in zip(mixing.seen, sizes, strict=True))
        worst = max(worst, max(off) / num_samples)
    return mixing, worst


def drift(num_steps: int, num_streams: int) -> float:
    """Gives how far the sum of what streams are owed drifts from 0 by rounding.

    Args:
        num_steps: Number of steps, of a billion samples each.
        num_streams: Number of streams.

    Returns:
        Samples.
    """
    shares = np.random.default_rng(0).dirichlet(np.ones(num_streams))
    carry = np.zeros(num_streams)
    for _ in range(num_steps):
        _, carry = apportion(shares, _BATCH_SIZE, carry)
    return abs(float(carry.sum()))


def _run_is_exact() -> Check:
    mixing, worst = whole_run()
    total = int(mixing.seen.sum())
    found = f"{total:,} samples, a stream off its share by {worst:.4f} at most"
    return Check("one pass over 1e13 samples in steps of 1e9 + 7", found, total == NUM_SAMPLES and worst <= 1.0)


def _order_is_a_bijection() -> Check:
    """Looks at both ends and the middle of an epoch of 1e13: indices are different, and within the data."""
    order, count = Order(NUM_SAMPLES, 3), 200_000
    starts = (0, NUM_SAMPLES // 2, NUM_SAMPLES - count)
    indices = np.concatenate([order.indices(start, count) for start in starts])
    is_within = bool((indices >= 0).all() and (indices < NUM_SAMPLES).all())
    num_different = len(np.unique(indices))
    return Check(
        "indices of 600,000 positions of a stream of 1e13",
        f"{num_different:,} different, mean {indices.mean() / NUM_SAMPLES:.4f} of the length",
        is_within and num_different == len(indices),
    )


def _shares_are_disjoint() -> Check:
    found = share_counts(10_000, 65_536, 4_096)
    text = f"{found['fewest']} to {found['most']} samples per rank"
    return Check("the shares of 4,096 ranks are the batch, each sample once", text, found["is_exact"])


def _state_round_trip() -> Check:
    """Takes a state through JSON at positions that a float would round."""
    position = _FLOAT_LIMIT + 1

    def new() -> Mixing:
        streams = [Stream(name, LazyRows(2**60 + 1)) for name in "ab"]
        return Mixing(Planner(streams, seed=0), Proportional(), Clock(64, 2**61 + 2, Budget(steps=10**9)))

    mixing = new()
    state = mixing.state_dict()
    for own in state["planner"]["streams"].values():
        own["position"] = own["seen"] = position
    other = new()
    other.load_state_dict(json.loads(json.dumps(state)))
    plan = other.next_plan()
    is_exact = plan is not None and plan.starts.tolist() == [position] * 2
    return Check("a state at position 2^53 + 1 through JSON", f"starts {position}", is_exact)


def _ledger_round_trip() -> Check:
    large = _FLOAT_LIMIT + 1
    with tempfile.TemporaryDirectory() as name:
        ledger = Ledger(Path(name), is_writer=True)
        ledger.begin(None, {})
        zeros, ints = np.zeros(2), np.zeros(2, dtype=np.int64)
        floats = ("weight", "loss", "coverage", "epoch", "policy_weight", "loss_weight", "owed")
        whole = ("count", "items", "unique", "staleness", "undelivered", "skipped")
        columns = {**dict.fromkeys(floats, zeros), **dict.fromkeys(whole, ints), "active": ints == 0}
        ledger.record_streams(1, ("a", "b"), {**columns, "seen": ints + large, "tokens": ints + large})
        ledger.finish()
        frame = ledger.to_pandas()
    is_exact = frame["seen"].tolist() == [large] * 2 and frame["tokens"].tolist() == [large] * 2
    return Check("2^53 + 1 samples and tokens in ledger and pandas", str(frame["seen"].dtype), is_exact)


def summed_message(world_size: int, tokens: int) -> int:
    """Has a rank confirm a step as one of many that all hold the same: the collective then multiplies.

    Args:
        world_size: Number of ranks.
        tokens: Tokens of each rank.

    Returns:
        The tokens of all ranks.
    """

    def multiply(message: Tensor, **_: Any) -> None:
        message.mul_(world_size)

    ones = np.ones(1)
    plan = StepPlan(0, np.array([2**40]), np.array([2**43]), ones, ones, None, 2**40, 0)
    contents = StepCounts(np.array([tokens]), np.array([tokens]))
    with patch.multiple("mixer.distributed.collectives.dist", get_backend=lambda: "gloo", all_reduce=multiply):
        return int(confirm(RankSync(world_size), 1, plan, contents, None).tokens[0])


def _messages_add_up() -> Check:
    tokens = 2**17 * 2**20  # a million samples of 131,072 tokens, on each rank
    total = summed_message(4_096, tokens)
    return Check(
        "messages of 4,096 ranks with 2^37 tokens each add up", f"{total / 2**63:.1e} of 2^63", total == 4_096 * tokens
    )


def checks() -> list[Check]:
    """Tries all of it.

    Returns:
        What was found.
    """
    owed = drift(10_000, 1_000)
    tried: list[Callable[[], Check]] = [
        _run_is_exact,
        _order_is_a_bijection,
        _shares_are_disjoint,
        _state_round_trip,
        _ledger_round_trip,
        _messages_add_up,
        lambda: Check("what 1,000 streams are owed adds up to 0 after 1e13 samples", f"off by {owed:.1e}", owed < 0.1),
    ]
    return [attempt() for attempt in tried]
