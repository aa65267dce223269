"""Ledgers written without training."""

from pathlib import Path
from typing import Any

import numpy as np

from mixer.ledger.ledger import Ledger
from mixer.tools.records.run import Run
from mixer.tools.records.runs import read_runs
from tests.mixer.made_measurements import measured

EPOCH_SIZE = 1000


def write_run(
    folder: Path,
    streams: tuple[str, ...] = ("math", "code"),
    num_steps: int = 6,
    is_done: bool = True,
    eval_every: int = 2,
    unsized: tuple[str, ...] = (),
    measure_every: int = 0,
) -> Ledger:
    """Writes a run: step i has 2i samples a stream and a loss of 10 / i plus the stream's place.

    Gradients are measured and a memory of the streams noted every so many steps, if not 0.
    """
    ledger = Ledger(folder / "ledger", is_writer=True)
    ledger.begin(None, {"streams": list(streams)})
    step = np.arange(1, num_steps + 1)
    count, num_streams = 2 * step, len(streams)
    seen = count.cumsum()
    size = EPOCH_SIZE / num_streams
    place = np.tile(np.arange(num_streams), num_steps)
    passes = np.where([name in unsized for name in streams * num_steps], np.nan, seen.repeat(num_streams) / size)
    zeros = np.zeros(len(place), dtype=np.int64)
    counts, seen_by_each = count.repeat(num_streams), seen.repeat(num_streams)
    equal = np.full(len(place), 1 / num_streams)
    columns = {"step": step.repeat(num_streams), "stream": np.array(streams * num_steps), "weight": equal}
    columns |= {"count": counts, "items": counts, "loss": 10 / step.repeat(num_streams) + place, "tokens": 3 * counts}
    columns |= {"seen": seen_by_each, "unique": seen_by_each, "coverage": np.minimum(1.0, passes), "epoch": passes}
    columns |= dict.fromkeys(("staleness", "undelivered", "skipped", "labels"), zeros)
    columns |= {"policy_weight": equal, "loss_weight": np.ones(len(place)), "owed": np.zeros(len(place))}
    ledger._tables["streams"].append({**columns, "active": np.ones(len(place), dtype=bool)})
    samples, sizes, ones = num_streams * seen, num_streams * count, np.ones(num_steps, dtype=np.int64)
    clock = {"step": step, "samples": samples, "tokens": 3 * samples, "epoch": samples / EPOCH_SIZE}
    clock |= {
        "progress": step / (num_steps if is_done else 2 * num_steps),
        "batch_size": sizes,
        "total": sizes,
        "labels": 0 * ones,
    }
    clock |= {"learning_rate": 0.1 * np.sin(np.pi * step / num_steps / 1.5), "learning_rate_factor": 1.0 * ones}
    clock |= {"loss": 10 / step, "gradient_norm": 1 / np.sqrt(step)}
    ledger._tables["clock"].append(clock)
    timings = {"step": step, **dict.fromkeys(("total", "micro_batches", "hits"), ones), "misses": 0 * ones}
    timings |= {"load_seconds": 0.5 * ones, "train_seconds": 20.0 * ones, "probe_seconds": 0.0 * ones}
    ledger._tables["timings"].append(timings)
    for at in range(0, num_steps + 1, eval_every):
        losses = {name: 9.0 - at + number for number, name in enumerate(streams)}
        metrics = {name: {"accuracy": loss / 9.0} for name, loss in losses.items()} if measure_every else {}
        ledger.record_evaluation(at, losses, metrics)
    for at in range(measure_every, num_steps + 1, measure_every) if measure_every else ():
        ledger.record_gradients(at, streams, measured(num_streams, seed=at))
        held = {name: at + number for number, name in enumerate(streams)}
        ledger.record("terms", {"step": [at], "term": ["ReferenceKL"], "value": [0.5 * at]})
        ledger.record_memory(at, "memory", held, {-1: 1, **dict(enumerate(held.values()))})
    ledger.finish() if is_done else ledger.flush()
    return ledger


def made_run(folder: Path, *given: Any, **options: Any) -> Run:
    """Writes a run and reads it."""
    write_run(folder, *given, **options)
    return read_runs([folder])[0]
