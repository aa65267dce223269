"""Time and memory of `mixer report` on long runs: ledgers of a million rows, each read in a process of its own.

The process is the command as a user starts it, with the start of Python and all imports. Peak memory is the greatest
resident set of that process.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import show, spread, write_json
from mixer.ledger.ledger import Ledger
from mixer.measurements.gradients import GradientStatistics

_MEGABYTE = 1e6
_EVALUATIONS = 100
_EPOCHS, _SKETCH = 3.0, 16

# The command line, and then what it took: what the system tells of a process that has ended counts its parent in.
_COMMAND = """
import sys
from mixer.cli.entry import main
main(sys.argv[1:])
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@dataclass(frozen=True)
class Length:
    """How long a run is.

    Args:
        num_streams: Number of streams.
        num_steps: Number of steps.
        num_measurements: How often the streams' gradients are measured.
        batch_size: Samples of a step.
    """

    num_streams: int
    num_steps: int
    num_measurements: int = 200
    batch_size: int = 256


_FULL = (Length(4, 250_000), Length(100, 10_000), Length(300, 3_334))
_LONGEST = (Length(10_000, 100_000, 0, 65_536),)
_QUICK = (Length(4, 500), Length(20, 100))


def write_ledger(folder: Path, length: Length) -> None:
    """Writes the ledger of a run that never took place: noisy losses that fall, weights that move.

    Args:
        folder: The output folder of the run.
        length: How long it is.
    """
    random = np.random.default_rng(0)
    ledger = Ledger(folder / "ledger", is_writer=True)
    names = tuple(f"stream-{number}" for number in range(length.num_streams))
    ledger.begin(None, {"streams": list(names)})
    seen, size = np.zeros(len(names), dtype=np.int64), length.num_steps * length.batch_size / len(names) / _EPOCHS
    evaluate_every = max(1, length.num_steps // _EVALUATIONS)
    measure_every = max(1, length.num_steps // max(1, length.num_measurements))
    weights, levels = np.full(len(names), 1 / len(names)), random.uniform(1.0, 3.0, len(names))
    for step in range(1, length.num_steps + 1):
        weights = np.exp(np.log(weights) + random.normal(0.0, 0.01, len(names)))
        weights /= weights.sum()
        count = random.multinomial(length.batch_size, weights)
        seen += count
        losses = levels * (1.0 + 4.0 / step**0.3) + random.normal(0.0, 0.1, len(names))
        ledger.record_streams(step, names, _columns(weights, count, seen, size, np.where(count > 0, losses, np.nan)))
        ledger.record_clock(**_clock(step, length, float(losses.mean())))
        ledger.record_timings(step=step, total=length.batch_size, hits=length.batch_size - 1, **_TIMINGS)
        if step % evaluate_every == 0:
            ledger.record_evaluation(step, dict(zip(names, losses, strict=True)))
        if length.num_measurements and step % measure_every == 0:
            ledger.record_gradients(step, names, _measurement(random, count))
    ledger.finish()


_TIMINGS = {
    "micro_batches": 4,
    "misses": 1,
    "load_seconds": 0.01,
    "train_seconds": 0.2,
    "probe_seconds": 0.0,
}


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
        "staleness": zeros,
        "undelivered": zeros,
        "skipped": zeros,
        "policy_weight": weights,
        "loss_weight": np.ones(len(count)),
        "owed": np.zeros(len(count)),
        "active": np.ones(len(count), dtype=bool),
    }


def _clock(step: int, length: Length, loss: float) -> dict[str, float]:
    progress = step / length.num_steps
    return {
        "step": step,
        "samples": step * length.batch_size,
        "tokens": 128 * step * length.batch_size,
        "epoch": _EPOCHS * progress,
        "progress": progress,
        "batch_size": length.batch_size,
        "total": length.batch_size,
        "learning_rate": 1e-3 * (1.0 - progress),
        "learning_rate_factor": 1.0,
        "loss": loss,
        "gradient_norm": 1.0 + 1.0 / step,
        "update_norm": float("nan"),
    }


def _measurement(random: np.random.Generator, count: Any) -> GradientStatistics:
    gradients = random.normal(0.1, 1.0, (len(count), _SKETCH))
    gram, variance = gradients @ gradients.T, random.uniform(1.0, 9.0, len(count))
    norms = np.diagonal(gram) - variance / np.maximum(1, count)
    return GradientStatistics(gram, variance, norms, count, count / count.sum(), np.zeros_like(gram))


def measure(folder: Path) -> dict[str, float]:
    """Writes the page about a run in a process of its own.

    Args:
        folder: The output folder of the run.

    Returns:
        Its `seconds`, those of a CPU (`cpu_seconds`), its `peak_megabytes`, and the `page_megabytes`.
    """
    started, before = time.perf_counter(), os.times()
    process = subprocess.run(
        [sys.executable, "-c", _COMMAND, "report", str(folder)], check=True, capture_output=True, text=True
    )
    seconds, after = time.perf_counter() - started, os.times()
    return {
        "seconds": seconds,
        "cpu_seconds": after.children_user + after.children_system - before.children_user - before.children_system,
        "peak_megabytes": 1024 * int(process.stdout.split()[-2]) / _MEGABYTE,
        "page_megabytes": (folder / "report.html").stat().st_size / _MEGABYTE,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints a table and writes the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, once: a smoke test")
    parser.add_argument(
        "--longest", action="store_true", help="10,000 streams for 100,000 steps, in place of the others"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    args = parser.parse_args(argv)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for length in _QUICK if args.quick else _LONGEST if args.longest else _FULL:
            folder = Path(name) / f"{length.num_streams} streams, {length.num_steps:,} steps"
            write_ledger(folder, length)
            turns = [measure(folder) for _ in range(1 if args.quick else args.repetitions)]
            figures[folder.name] = {key: spread([turn[key] for turn in turns]) for key in turns[0]}
    show(
        "mixer report, from the start of its process to the end; median (least to greatest)",
        ["run", "seconds", "of a CPU", "peak memory, MB", "page, MB"],
        [[name, *(_in_words(one) for one in figure.values())] for name, figure in figures.items()],
    )
    write_json(args.json, {"report": figures})


def _in_words(figure: dict[str, float]) -> str:
    return f"{figure['median']:.1f} ({figure['min']:.1f} to {figure['max']:.1f})"
