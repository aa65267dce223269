"""Runs made without a ledger, for rules that look at nothing else."""

from pathlib import Path

import numpy as np
import pandas as pd

from mixer.tools.records.gradient_tables import Cosines
from mixer.tools.records.run import Run

NUM_STEPS = 240
BATCH_SIZE = 32
EPOCH_SIZE = 10_000


def calm_run(streams: tuple[str, ...] = ("math", "code", "chat"), seed: int = 0) -> Run:
    """Makes a run about which nothing is conspicuous: equal weights, noisy losses that fall."""
    random = np.random.default_rng(seed)
    step = np.arange(1, NUM_STEPS + 1)
    samples = BATCH_SIZE * step
    place = {"step": step, "epoch": samples / EPOCH_SIZE, "samples": samples}
    sizes = {"tokens": samples, "progress": step / NUM_STEPS, "batch_size": BATCH_SIZE, "total": BATCH_SIZE}
    rates = {"learning_rate": 1e-3, "learning_rate_factor": 1.0, "loss": 2 + 3 / np.sqrt(step), "gradient_norm": 1.0}
    count = BATCH_SIZE // len(streams)
    counts = {"weight": 1 / len(streams), "count": count, "items": 100 * count, "seen": count * step}
    covered = {"coverage": np.minimum(1.0, count * step / 4_000), "passes": count * step / 4_000}
    rows = {}
    for name in streams:
        loss = 2 + 3 / np.sqrt(step) + random.normal(0.0, 0.05, NUM_STEPS)
        rows[name] = pd.DataFrame({**place, **counts, **covered, "loss": loss, "active": True, "skipped": 0})
    at = np.array([0, 40, 80, 120, 160, 200, 240])
    evaluated = {"step": at, "epoch": BATCH_SIZE * at / EPOCH_SIZE, "samples": BATCH_SIZE * at}
    batches = {"hits": 0, "misses": 0, "load_seconds": 0.01, "train_seconds": 0.5, "probe_seconds": 0.0}
    made = object.__new__(Run)
    return made.but(
        name="run",
        folder=Path(),
        note={},
        interval_steps=1,
        objective=None,
        description={"streams": [{"name": name, "kind": "data", "max_epochs": None} for name in streams]},
        clock=pd.DataFrame({**place, **sizes, **rates}),
        timings=pd.DataFrame({**place, **batches}),
        streams=rows,
        evaluations={name: pd.DataFrame({**evaluated, "loss": 2 + 3 / np.sqrt(at + 1)}) for name in streams},
        metrics={},
        eval_weights=None,
        gradients={},
        noise=pd.DataFrame({"step": [], "signal": [], "noise": [], "epoch": [], "samples": []}),
        cosines=None,
        memories={},
    )


def cosines(mean: float, error: float, count: int = 50, num_streams: int = 2) -> Cosines:
    """Makes cosines that are the same between all streams."""
    pairs = (num_streams, num_streams)
    return Cosines(
        [f"stream {place}" for place in range(num_streams)],
        np.array([0.0, 1.0]),
        np.full((1, *pairs), mean),
        np.full(pairs, mean),
        np.full(pairs, error),
        np.full(pairs, count),
    )
