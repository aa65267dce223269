"""Writes ledgers as a trainer does, with made-up numbers."""

from pathlib import Path
from typing import Any

import numpy as np

from mixer.ledger.ledger import Ledger

WHOLE = ("count", "items", "tokens", "seen", "unique", "staleness", "undelivered", "skipped", "active")
FLOATS = ("weight", "loss", "coverage", "epoch", "policy_weight", "loss_weight", "owed")
RATES = ("learning_rate", "learning_rate_factor", "loss", "gradient_norm")


def record_step(ledger: Ledger, names: tuple[str, ...], clock: dict[str, Any], columns: dict[str, Any]) -> None:
    """Records a step: 1 for all of the streams that is not given, NaN for what was measured of the step."""
    ones = {name: np.ones(len(names), dtype=np.int64 if name in WHOLE else np.float64) for name in WHOLE + FLOATS}
    ledger.record_streams(clock["step"], names, {**ones, **columns})
    total = int(np.sum(columns["count"]))
    ledger.record_clock(**{"batch_size": total, "total": total, **dict.fromkeys(RATES, float("nan")), **clock})


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
    total, weights = int(parts.sum()), parts / parts.sum()
    for step in written:
        columns = {"count": parts, "items": parts, "tokens": 10 * parts, "weight": weights, "policy_weight": weights}
        columns |= {"seen": step * parts, "unique": step * parts, "epoch": step * parts / 200}
        columns |= {"coverage": np.minimum(1.0, step * parts / 200)}
        columns |= {"loss": np.where(parts <= broken, nan, 4.0 - step / 100 + parts - 1)}
        place = {"step": step, "samples": total * step, "tokens": 10 * total * step, "epoch": step / 100}
        measured = {"loss": nan if broken else 4.0 - step / 100, "gradient_norm": nan if broken else 0.5}
        record_step(ledger, names(num_streams), {**place, **measured, "progress": step / steps}, columns)
        seconds = {"load_seconds": 0.25, "train_seconds": 0.75, "probe_seconds": 0.0}
        ledger.record_timings(step=step, total=total, micro_batches=1, hits=0, misses=0, **seconds)
    ledger.flush()
