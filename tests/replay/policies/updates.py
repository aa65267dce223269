"""Mixtures with memories, and what steps of them show, for the tests of policies that replay."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixer.measurements.gradients import GradientStatistics
from mixer.policies import Decision, Mixture, Observation
from tests.mixer.kinds import parted

# Memories stand between the others, so that a mix-up of indices shows.
MIXED = Mixture(
    ("early", "a", "late", "b", "c"), np.array([0, 40, 0, 10, 50]), np.array([0.1, 0.2, 0.1, 0.2, 0.4]), memories=(0, 2)
)
MEMORIES, OTHERS = [0, 2], [1, 3, 4]
_KINDS: dict[str, type] = {"weights": float, "losses": float, "shares": float, "seen": int, "active": bool}


def one_memory(num_others: int = 2, sizes: Sequence[int] | None = None) -> Mixture:
    names = (*(f"task {k}" for k in range(num_others)), "memory")
    sizes = [100] * num_others if sizes is None else sizes
    return Mixture(names, np.array([*sizes, 0]), np.full(len(names), 1 / len(names)), (num_others,))


def shown(num_streams: int, step: int = 1, **fields: Any) -> Observation:
    """What a step shows, with plain numbers where none are given; who has a share stays."""
    given = {name: np.array(value, _KINDS[name]) if name in _KINDS else value for name, value in fields.items()}
    counts = np.full(num_streams, 2)
    plain = {
        "progress": 0.0,
        "weights": np.full(num_streams, 1 / num_streams),
        "seen": step * counts,
        "losses": np.full(num_streams, np.nan),
        "active": given["shares"] > 0 if "shares" in given else None,
    }
    fields, results = parted({**plain, **given})
    return Observation(step=step, counts=counts, tokens=10 * counts, **fields, measured=results)


def random_step(random: np.random.Generator, step: int, decision: Decision, batch_size: int = 24) -> Observation:
    """A step of as many streams as the decision has, with all that can be observed."""
    num_streams = len(decision.weights)
    weights = decision.weights / decision.weights.sum()
    counts = random.integers(2, 6, num_streams)
    vectors = random.normal(size=(num_streams, 3))
    shown = {
        "step": step,
        "progress": min(1.0, step / 20),
        "weights": weights,
        "counts": counts,
        "tokens": 7 * counts,
        "seen": step * counts,
        "losses": np.where(random.random(num_streams) < 0.1, np.nan, random.random(num_streams) * 3),
        "evaluation_losses": random.random(num_streams) if step % 3 == 0 else None,
        "gradients": GradientStatistics(
            gram=vectors @ vectors.T,
            variance=random.random(num_streams) * 5,
            squared_norm=random.random(num_streams) * 3 - 0.3,
            counts=counts,
            shares=counts / counts.sum(),
            gram_error=np.zeros((num_streams, num_streams)),
        ),
        "shares": weights,
        "batch_size": batch_size,
    }
    fields, results = parted(shown)
    return Observation(**fields, measured=results)
