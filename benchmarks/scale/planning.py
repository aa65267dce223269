"""What planning costs as a function of streams, batch, ranks and data: for `benchmarks.scale`."""

import json
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import numpy as np

from benchmarks.scale.term import BATCH, RANKS, SAMPLES, STREAMS, Term, counted, swept
from benchmarks.speed.competitors import ROW_LENGTH, LazyRows
from mixer.measurements import Loss
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.permutation import Order
from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.mixture.sharding import rank_samples
from mixer.mixture.stream import Stream
from mixer.policies import Fixed, Function, LossChange, Policy

NUM_STREAMS = (100, 1_000, 10_000)
NUM_RANKS = (64, 512, 4_096)
_BATCHES = (65_536, 524_288, 4_194_304)
_BATCH, _WORLD_SIZE = 65_536, 4_096


def new_streams(num_streams: int, num_samples: float = 1e13) -> list[Stream]:
    """Makes streams of equal size.

    Args:
        num_streams: How many.
        num_samples: Samples of all together.

    Returns:
        The streams.
    """
    size = int(num_samples) // num_streams
    return [Stream(f"stream-{number:05d}", LazyRows(size)) for number in range(num_streams)]


def new_mixing(
    num_streams: int, batch_size: int = _BATCH, policy: Policy | None = None, num_samples: float = 1e13
) -> Mixing:
    """Builds the controller of a long run.

    Args:
        num_streams: Number of streams.
        batch_size: Samples of a step, over all ranks.
        policy: What decides; `None` fixes weights at random.
        num_samples: Samples of all streams together.

    Returns:
        The controller.
    """
    weights = np.random.default_rng(0).dirichlet(np.ones(num_streams)) + 1e-6
    clock = Clock(batch_size, int(num_samples), Budget(steps=10**9))
    planner = Planner(new_streams(num_streams, num_samples), seed=0)
    return Mixing(planner, policy or Fixed(weights.tolist()), clock)


def a_plan(num_streams: int, batch_size: int = _BATCH, num_samples: float = 1e13) -> tuple[Mixing, Plan]:
    """Gives a controller and the plan of its third step.

    Args:
        num_streams: Number of streams.
        batch_size: Samples of a step, over all ranks.
        num_samples: Samples of all streams together.

    Returns:
        The controller, and the plan.
    """
    mixing = new_mixing(num_streams, batch_size, num_samples=num_samples)
    for _ in range(3):
        plan = mixing.next_plan()
        assert plan is not None, "the streams go on without end"
        _observe(mixing, plan)
    return mixing, plan


def _observe(mixing: Mixing, plan: Plan) -> None:
    mixing.observe(plan, plan.counts * ROW_LENGTH, {Loss: np.where(plan.counts > 0, 2.0, np.nan)})


def _moving(num_streams: int) -> Policy:
    """Gives weights that are others in each step, as far from each other as can be."""
    random = np.random.default_rng(1)
    drawn = cycle([random.dirichlet(np.full(num_streams, 0.1)) + 1e-9 for _ in range(8)])
    return Function(lambda step, weights: next(drawn))


def _planning(mixing: Mixing) -> Callable[[], object]:
    def plan() -> None:
        made = mixing.next_plan()
        assert made is not None, "the streams go on without end"
        _observe(mixing, made)

    return plan


def _share(num_streams: int, batch_size: int, world_size: int, num_samples: float = 1e13) -> Callable[[], object]:
    mixing, plan = a_plan(num_streams, batch_size, num_samples)
    return lambda: mixing.planner.rank_share(plan, world_size - 1, world_size)


def _step(num_streams: int) -> Callable[[], object]:
    """Gives all that a rank does to plan a step: the plan, its fingerprint, the rank's samples, and the count after."""
    mixing = new_mixing(num_streams)

    def step() -> None:
        plan = mixing.next_plan()
        assert plan is not None, "the streams go on without end"
        plan.fingerprint()
        mixing.planner.rank_share(plan, _WORLD_SIZE - 1, _WORLD_SIZE)
        _observe(mixing, plan)

    return step


def _ahead(num_streams: int) -> Callable[[], object]:
    mixing, _ = a_plan(num_streams)
    mixing.next_plan()
    return lambda: list(islice(mixing.forecast(), 2))


def _mapping(length: int) -> Callable[[], object]:
    order, positions = Order(length, 7), np.arange(length - 4_096, length, dtype=np.int64)
    ids = np.zeros(len(positions), dtype=np.int64)
    return lambda: order.map_positions(ids, positions)


def _fingerprint(num_streams: int) -> Callable[[], object]:
    _, plan = a_plan(num_streams)
    return plan.fingerprint


def _loaded(num_streams: int) -> Callable[[], object]:
    mixing, _ = a_plan(num_streams)
    text = json.dumps(mixing.state_dict())
    return lambda: mixing.load_state_dict(json.loads(text))


def _state_bytes(num_streams: int, policy: Policy | None = None) -> int:
    mixing = new_mixing(num_streams, policy=policy)
    _planning(mixing)()
    return len(json.dumps(mixing.state_dict()))


def _saved(num_streams: int) -> Callable[[], Any]:
    mixing, _ = a_plan(num_streams)
    return lambda: json.dumps(mixing.state_dict())


def terms() -> list[Term]:
    """Measures all of it.

    Returns:
        The terms.
    """
    many, alone = f"{_BATCH:,} samples", f"{_WORLD_SIZE:,} ranks"
    return [
        swept("plan and observe, fixed weights", STREAMS, NUM_STREAMS, lambda k: _planning(new_mixing(k)), many),
        swept(
            "plan and observe, LossChange",
            STREAMS,
            NUM_STREAMS,
            lambda k: _planning(new_mixing(k, policy=LossChange(floor=0.1 / k))),
            many,
        ),
        swept(
            "plan and observe, weights that jump",
            STREAMS,
            NUM_STREAMS,
            lambda k: _planning(new_mixing(k, policy=_moving(k))),
            many,
        ),
        swept(
            "plan and observe, fixed weights", BATCH, _BATCHES, lambda b: _planning(new_mixing(1_000, b)), "K = 1,000"
        ),
        swept(
            "plan and observe, fixed weights",
            SAMPLES,
            (1e7, 1e10, 1e13),
            lambda n: _planning(new_mixing(1_000, num_samples=n)),
            "K = 1,000",
        ),
        swept("two plans looked ahead", STREAMS, NUM_STREAMS, _ahead, many),
        swept("fingerprint of a plan", STREAMS, NUM_STREAMS, _fingerprint),
        swept("a step of one rank, all of it", STREAMS, NUM_STREAMS, _step, f"{many}, {alone}"),
        swept("share of one rank", STREAMS, NUM_STREAMS, lambda k: _share(k, _BATCH, _WORLD_SIZE), f"{many}, {alone}"),
        swept("share of one rank", BATCH, _BATCHES, lambda b: _share(1_000, b, _WORLD_SIZE), f"K = 1,000, {alone}"),
        swept(
            "share of one rank", RANKS, NUM_RANKS, lambda w: _share(1_000, 4_096 * 64, w), "K = 1,000, 262,144 samples"
        ),
        swept(
            "share of one rank",
            SAMPLES,
            (1e7, 1e10, 1e13),
            lambda n: _share(1_000, _BATCH, _WORLD_SIZE, n),
            f"K = 1,000, {alone}",
        ),
        swept("4,096 positions of an order", SAMPLES, (1e7, 1e10, 1e13), _mapping),
        swept("start: streams and planner", STREAMS, NUM_STREAMS, lambda k: lambda: new_mixing(k)),
        counted("state in a checkpoint", STREAMS, NUM_STREAMS, _state_bytes, "fixed weights"),
        counted(
            "state in a checkpoint",
            STREAMS,
            NUM_STREAMS,
            lambda k: _state_bytes(k, LossChange(floor=0.1 / k)),
            "LossChange",
        ),
        swept("state written as JSON", STREAMS, NUM_STREAMS, _saved),
        swept("state read and taken up", STREAMS, NUM_STREAMS, _loaded),
    ]


def share_counts(num_streams: int, batch_size: int, world_size: int) -> dict[str, Any]:
    """Computes the shares of all ranks of one step, one after the other, and adds them up.

    Args:
        num_streams: Number of streams.
        batch_size: Samples of the step.
        world_size: Number of ranks.

    Returns:
        `fewest` and `most` samples of a rank; `is_exact`: whether each sample of the plan is on one rank, once.
    """
    _, plan = a_plan(num_streams, batch_size)
    parts = [np.stack(rank_samples(plan, rank, world_size)) for rank in range(world_size)]
    numbers = [part.shape[1] for part in parts]
    ids, positions = np.concatenate(parts, axis=1)
    order = np.lexsort((positions, ids))
    wanted_ids = np.repeat(np.arange(num_streams), plan.counts)
    first = np.repeat(np.cumsum(plan.counts) - plan.counts, plan.counts)
    wanted = np.arange(plan.total) - first + np.repeat(plan.starts, plan.counts)
    is_exact = np.array_equal(ids[order], wanted_ids) and np.array_equal(positions[order], wanted)
    return {"fewest": min(numbers), "most": max(numbers), "is_exact": bool(is_exact)}
