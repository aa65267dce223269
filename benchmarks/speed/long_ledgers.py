"""Ledgers of runs that never took place, to measure what reads them."""

from pathlib import Path
from typing import Any

import numpy as np

from mixer.ledger.ledger import Ledger

_EVALUATIONS = 100
_EPOCHS = 3.0


def write_ledger(folder: Path, num_streams: int, num_steps: int, batch_size: int = 256) -> None:
    """Writes the ledger of a run that never took place: noisy losses that fall, weights that move.

    Args:
        folder: The output folder of the run.
        num_streams: Number of streams.
        num_steps: Number of steps.
        batch_size: Samples of a step.
    """
    random = np.random.default_rng(0)
    ledger = Ledger(folder / "ledger", is_writer=True)
    names = tuple(f"stream-{number}" for number in range(num_streams))
    ledger.begin(None, {"streams": list(names)})
    seen, size = np.zeros(len(names), dtype=np.int64), num_steps * batch_size / len(names) / _EPOCHS
    evaluate_every = max(1, num_steps // _EVALUATIONS)
    weights, levels = np.full(len(names), 1 / len(names)), random.uniform(1.0, 3.0, len(names))
    for step in range(1, num_steps + 1):
        weights = np.exp(np.log(weights) + random.normal(0.0, 0.01, len(names)))
        weights /= weights.sum()
        count = random.multinomial(batch_size, weights)
        seen += count
        losses = levels * (1.0 + 4.0 / step**0.3) + random.normal(0.0, 0.1, len(names))
        ledger.record_streams(step, names, _columns(weights, count, seen, size, np.where(count > 0, losses, np.nan)))
        ledger.record_clock(**_clock(step, num_steps, batch_size, float(losses.mean())))
        ledger.record_timings(step=step, total=batch_size, hits=batch_size - 1, **_TIMINGS)
        if step % evaluate_every == 0:
            ledger.record_evaluation(step, dict(zip(names, losses, strict=True)))
    ledger.finish()


_TIMINGS = {"micro_batches": 4, "misses": 1, "load_seconds": 0.01, "train_seconds": 0.2, "probe_seconds": 0.0}


def _columns(weights: Any, count: Any, seen: Any, size: float, losses: Any) -> dict[str, Any]:
    zeros, unique = np.zeros(len(count), dtype=np.int64), np.minimum(seen, int(size))
    return {
        "weight": weights,
        "count": count,
        "items": 128 * count,
        "loss": losses,
        "tokens": 128 * count,
        "seen": seen.copy(),
        "unique": unique,
        "coverage": np.minimum(1.0, seen / size),
        "epoch": seen / size,
        **dict.fromkeys(("staleness", "undelivered", "skipped"), zeros),
        "policy_weight": weights,
        "loss_weight": np.ones(len(count)),
        "owed": np.zeros(len(count)),
        "active": np.ones(len(count), dtype=bool),
    }


def _clock(step: int, num_steps: int, batch_size: int, loss: float) -> dict[str, float]:
    progress = step / num_steps
    return {
        "step": step,
        "samples": step * batch_size,
        "tokens": 128 * step * batch_size,
        "epoch": _EPOCHS * progress,
        "progress": progress,
        "batch_size": batch_size,
        "total": batch_size,
        "learning_rate": 1e-3 * (1.0 - progress),
        "learning_rate_factor": 1.0,
        "loss": loss,
        "gradient_norm": 1.0 + 1.0 / step,
    }
