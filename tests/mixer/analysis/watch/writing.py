"""Writes ledgers as a trainer does, with made-up numbers."""

from pathlib import Path
from typing import Any

import numpy as np

from mixer.ledger.ledger import Ledger


def begin(folder: Path, num_streams: int, num_written: int = 0, steps: int = 200, broken: int = 0) -> Ledger:
    """Begins a run and writes its first steps."""
    ledger = Ledger(folder / "ledger", is_writer=True)
    ledger.begin(None, {"streams": names(num_streams), "policy": "LossChange", "run": {"budget": {"steps": steps}}})
    write(ledger, range(1, num_written + 1), num_streams, steps, broken)
    return ledger


def names(num_streams: int) -> tuple[str, ...]:
    return tuple(f"stream-{number}" for number in range(num_streams))


def write(ledger: Ledger, written: range, num_streams: int, steps: int = 200, broken: int = 0) -> None:
    """Writes steps: stream k has weight (k + 1) / sum, k + 1 samples and the loss 4 - step / 100 + k.

    The losses of the first `broken` streams, and so of the whole, are NaN.
    """
    parts, nan = np.arange(1, num_streams + 1), float("nan")
    total, zeros, weights = int(parts.sum()), np.zeros(num_streams, dtype=np.int64), parts / parts.sum()
    for step in written:
        columns: dict[str, Any] = {"count": parts, "items": parts, "tokens": 10 * parts}
        columns |= {"weight": weights, "policy_weight": weights, "loss_weight": np.ones(num_streams)}
        columns |= {"seen": step * parts, "unique": step * parts, "epoch": step * parts / 200}
        columns |= {"coverage": np.minimum(1.0, step * parts / 200), "staleness": zeros, "undelivered": zeros}
        columns |= {"loss": np.where(parts <= broken, nan, 4.0 - step / 100 + parts - 1), "skipped": zeros}
        columns |= {"owed": np.zeros(num_streams), "active": np.ones(num_streams, dtype=bool)}
        ledger.record_streams(step, names(num_streams), columns)
        place = {"step": step, "samples": total * step, "tokens": 10 * total * step, "epoch": step / 100}
        sizes = {"progress": step / steps, "batch_size": total, "total": total}
        rates = {"learning_rate": 1e-3, "learning_rate_factor": 1.0, "update_norm": nan}
        measured = {"loss": nan if broken else 4.0 - step / 100, "gradient_norm": nan if broken else 0.5}
        ledger.record_clock(**place, **sizes, **rates, **measured)
        seconds = {"load_seconds": 0.25, "train_seconds": 0.75, "probe_seconds": 0.0}
        ledger.record_timings(step=step, total=total, micro_batches=1, hits=0, misses=0, **seconds)
    ledger.flush()
