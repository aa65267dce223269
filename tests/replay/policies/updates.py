"""Mixtures with memories, and what steps of them show, for the tests of policies that replay."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import Decision, Mixture, Observation, Policy
from mixer.policies.gradient_statistics import GradientStatistics

# Memories stand between the others, so that a mix-up of indices shows.
MIXED = Mixture(
    ("early", "a", "late", "b", "c"),
    np.array([0, 40, 0, 10, 50]),
    np.array([0.1, 0.2, 0.1, 0.2, 0.4]),
    memories=(0, 2),
)
MEMORIES, OTHERS = [0, 2], [1, 3, 4]


def one_memory(num_others: int = 2, sizes: Sequence[int] | None = None, has_weights: bool = True) -> Mixture:
    names = (*(f"task {k}" for k in range(num_others)), "memory")
    sizes = [100] * num_others if sizes is None else sizes
    return Mixture(
        names, np.array([*sizes, 0]), np.full(len(names), 1 / len(names)), (num_others,), has_weights=has_weights
    )


def shown(
    num_streams: int,
    step: int = 1,
    *,
    weights: Sequence[float] | None = None,
    shares: Sequence[float] | None = None,
    seen: Sequence[int] | None = None,
    losses: Sequence[float] | None = None,
    progress: float = 0.0,
    update_norm: float = float("nan"),
    active: Sequence[bool] | None = None,
    batch_size: int | None = None,
) -> Observation:
    """What a step shows, with plain numbers where none are given; who has a share stays."""
    counts = np.full(num_streams, 2)
    return Observation(
        step=step,
        progress=progress,
        weights=np.full(num_streams, 1 / num_streams) if weights is None else np.array(weights, dtype=np.float64),
        counts=counts,
        tokens=10 * counts,
        seen=step * counts if seen is None else np.array(seen),
        losses=np.full(num_streams, np.nan) if losses is None else np.array(losses, dtype=np.float64),
        shares=None if shares is None else np.array(shares, dtype=np.float64),
        active=np.array(active) if active is not None else None if shares is None else np.array(shares) > 0,
        batch_size=batch_size,
        update_norm=update_norm,
    )


def random_step(random: np.random.Generator, step: int, decision: Decision, batch_size: int = 24) -> Observation:
    """A step of as many streams as the decision has, with all that can be observed."""
    num_streams = len(decision.weights)
    weights = decision.weights / decision.weights.sum()
    counts = random.integers(2, 6, num_streams)
    vectors = random.normal(size=(num_streams, 3))
    return Observation(
        step=step,
        progress=min(1.0, step / 20),
        weights=weights,
        counts=counts,
        tokens=7 * counts,
        seen=step * counts,
        losses=np.where(random.random(num_streams) < 0.1, np.nan, random.random(num_streams) * 3),
        evaluation_losses=random.random(num_streams) if step % 3 == 0 else None,
        gradients=GradientStatistics(
            gram=vectors @ vectors.T,
            variance=random.random(num_streams) * 5,
            squared_norm=random.random(num_streams) * 3 - 0.3,
            counts=counts,
            shares=counts / counts.sum(),
            gram_error=np.zeros((num_streams, num_streams)),
        ),
        shares=weights,
        batch_size=batch_size,
        update_norm=float(random.random()) + 0.1,
    )


def run_planned(
    policy: Policy, streams: Sequence[Stream], mixture: Mixture, num_steps: int, batch_size: int = 40
) -> np.ndarray:
    """Counts `[num_steps, num_streams]` of a run through the planner, in which memories are plain streams."""
    planner = Planner(streams, seed=0)
    weights, rows = policy.start(replace(mixture, active=planner.active(0.0))).weights, []
    for step in range(num_steps):
        shares, available = planner.shares(weights / weights.sum(), step / num_steps)
        counts, _ = planner.draw(shares, available, batch_size, step)
        rows.append(counts)
        observation = Observation(
            step=step + 1,
            progress=(step + 1) / num_steps,
            weights=weights / weights.sum(),
            counts=counts,
            tokens=np.zeros_like(counts),
            seen=planner.seen.copy(),
            losses=np.full(len(counts), 1.0),
            shares=shares,
            batch_size=batch_size,
            update_norm=1.0,
            active=planner.active((step + 1) / num_steps),
        )
        if not policy.is_static:
            weights = policy.update(observation).weights
    return np.array(rows)
