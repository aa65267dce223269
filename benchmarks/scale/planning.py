"""What planning costs as a function of streams, batch, ranks and data: for `benchmarks.scale`."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.scale.term import BATCH, RANKS, SAMPLES, STREAMS, Term, counted, swept
from benchmarks.speed.competitors import ROW_LENGTH, LazyRows
from mixer.measurements import Loss
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan, rank_samples
from mixer.mixture.stream import Stream
from mixer.policies import Fixed

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


def new_mixing(num_streams: int, batch_size: int = _BATCH, num_samples: float = 1e13) -> Mixing:
    """Builds the controller of a long run, with weights that are fixed at random.

    Args:
        num_streams: Number of streams.
        batch_size: Samples of a step, over all ranks.
        num_samples: Samples of all streams together.

    Returns:
        The controller.
    """
    weights = np.random.default_rng(0).dirichlet(np.ones(num_streams)) + 1e-6
    clock = Clock(batch_size, int(num_samples), Budget(steps=10**9))
    planner = Planner(new_streams(num_streams, num_samples), seed=0)
    return Mixing(planner, Fixed(weights.tolist()), clock)


def a_plan(num_streams: int, batch_size: int = _BATCH, num_samples: float = 1e13) -> tuple[Mixing, StepPlan]:
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


def _observe(mixing: Mixing, plan: StepPlan) -> None:
    mixing.observe(plan, plan.counts * ROW_LENGTH, {Loss: np.where(plan.counts > 0, 2.0, np.nan)})


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


def _state_bytes(num_streams: int) -> int:
    mixing = new_mixing(num_streams)
    _planning(mixing)()
    return len(json.dumps(mixing.state_dict()))


def terms() -> list[Term]:
    """Measures all of it.

    Returns:
        The terms.
    """
    many, alone, thousand = f"{_BATCH:,} samples", f"{_WORLD_SIZE:,} ranks", "K = 1,000"
    plan, share = "plan and observe", "share of one rank"
    by_samples = (1e7, 1e10, 1e13)
    return [
        swept(plan, STREAMS, NUM_STREAMS, lambda k: _planning(new_mixing(k)), many),
        swept(plan, BATCH, _BATCHES, lambda b: _planning(new_mixing(1_000, b)), thousand),
        swept(plan, SAMPLES, by_samples, lambda n: _planning(new_mixing(1_000, num_samples=n)), thousand),
        swept("a step of one rank, all of it", STREAMS, NUM_STREAMS, _step, f"{many}, {alone}"),
        swept(share, STREAMS, NUM_STREAMS, lambda k: _share(k, _BATCH, _WORLD_SIZE), f"{many}, {alone}"),
        swept(share, BATCH, _BATCHES, lambda b: _share(1_000, b, _WORLD_SIZE), f"{thousand}, {alone}"),
        swept(share, RANKS, NUM_RANKS, lambda w: _share(1_000, 4_096 * 64, w), f"{thousand}, 262,144 samples"),
        swept(share, SAMPLES, by_samples, lambda n: _share(1_000, _BATCH, _WORLD_SIZE, n), f"{thousand}, {alone}"),
        swept("start: streams and planner", STREAMS, NUM_STREAMS, lambda k: lambda: new_mixing(k)),
        counted("state in a checkpoint", STREAMS, NUM_STREAMS, _state_bytes),
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
