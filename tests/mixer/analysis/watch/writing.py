"""Writes ledgers as a trainer does, with made-up numbers."""

from pathlib import Path
from typing import Any

import numpy as np

from mixer.ledger.ledger import Ledger


def begin(folder: Path, num_streams: int, steps: int = 200) -> Ledger:
    ledger = Ledger(folder / "ledger", is_writer=True)
    ledger.begin(None, {"streams": names(num_streams), "policy": "LossChange", "run": {"budget": {"steps": steps}}})
    return ledger


def names(num_streams: int) -> tuple[str, ...]:
    return tuple(f"stream-{number}" for number in range(num_streams))


def write(ledger: Ledger, step: int, num_streams: int, steps: int = 200, broken: int = 0) -> None:
    """Writes a step: stream k has weight (k + 1) / sum, k + 1 samples and the loss 4 - step / 100 + k.

    The losses of the first `broken` streams, and so of the whole, are NaN.
    """
    parts = np.arange(1, num_streams + 1)
    zeros = np.zeros(num_streams, dtype=np.int64)
    columns: dict[str, Any] = {
        "weight": parts / parts.sum(),
        "count": parts,
        "items": parts,
        "loss": np.where(parts <= broken, np.nan, 4.0 - step / 100 + parts - 1),
        "tokens": 10 * parts,
        "seen": step * parts,
        "unique": step * parts,
        "coverage": np.minimum(1.0, step * parts / 200),
        "epoch": step * parts / 200,
        "staleness": zeros,
        "undelivered": zeros,
        "skipped": zeros,
        "policy_weight": parts / parts.sum(),
        "loss_weight": np.ones(num_streams),
        "owed": np.zeros(num_streams),
        "active": np.ones(num_streams, dtype=bool),
    }
    ledger.record_streams(step, names(num_streams), columns)
    total = int(parts.sum())
    ledger.record_clock(
        step=step,
        samples=total * step,
        tokens=10 * total * step,
        epoch=step / 100,
        progress=step / steps,
        batch_size=total,
        total=total,
        learning_rate=1e-3,
        learning_rate_factor=1.0,
        loss=float("nan") if broken else 4.0 - step / 100,
        gradient_norm=float("nan") if broken else 0.5,
        update_norm=float("nan"),
    )
    ledger.record_timings(
        step=step,
        total=total,
        micro_batches=1,
        hits=0,
        misses=0,
        load_seconds=0.25,
        train_seconds=0.75,
        probe_seconds=0.0,
    )
