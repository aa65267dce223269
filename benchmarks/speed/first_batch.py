"""What the first batch of a huge shuffled stream costs.

`benchmarks.speed.planning` runs this once a size, each in a process:
`python -m benchmarks.speed.first_batch mixer 1000000000`.
"""

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from torch.utils.data import DataLoader, RandomSampler
from transformers import default_data_collator

from benchmarks.speed.competitors import SHARES, LazyRows, mixing_batches

_BATCH_SIZE = 32
# A sampler that lists its indices is not built again, nor traced object by object, beyond so many of them.
_MAX_REPEATED = 1_000_000


def _mixer(num_samples: int) -> Any:
    return next(mixing_batches([LazyRows(num_samples) for _ in SHARES], _BATCH_SIZE, default_data_collator))


def _random_sampler(num_samples: int) -> Any:
    dataset = LazyRows(num_samples)
    loader = DataLoader(dataset, _BATCH_SIZE, sampler=RandomSampler(dataset), collate_fn=default_data_collator)
    return next(iter(loader))


COMPETITORS: dict[str, Callable[[int], Any]] = {"mixer, by columns": _mixer, "RandomSampler": _random_sampler}


def measure(name: str, num_samples: int, repetitions: int) -> dict[str, float | None]:
    """Builds a loader from nothing and draws its first batch.

    Args:
        name: A key of `COMPETITORS`.
        num_samples: Samples of each stream of ours (of which there are three); of the one data set of the other.
        repetitions: How often it is done again, after the first time of the process.

    Returns:
        `first_ms`: the first time in this process; `again_ms`: median of the others; `rss_mb`: growth of the peak of
        resident memory the first time; `traced_mb`: peak of Python's and numpy's allocations. `None` where a sampler
        is too large to do it again.
    """
    build = COMPETITORS[name]
    before = _reset_peak()
    first = _milliseconds(build, num_samples)
    rss = (_peak() - before) / 1e6
    if name != "mixer, by columns" and num_samples > _MAX_REPEATED:
        return {"first_ms": first, "again_ms": None, "rss_mb": rss, "traced_mb": None}
    again = statistics.median(_milliseconds(build, num_samples) for _ in range(repetitions))
    return {"first_ms": first, "again_ms": again, "rss_mb": rss, "traced_mb": _traced(build, num_samples)}


def _milliseconds(build: Callable[[int], Any], num_samples: int) -> float:
    start = time.perf_counter()
    build(num_samples)
    return (time.perf_counter() - start) * 1e3


def _traced(build: Callable[[int], Any], num_samples: int) -> float:
    tracemalloc.start()
    build(num_samples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def _reset_peak() -> int:
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")  # Linux: the peak starts anew from what is resident now
    return int(psutil.Process().memory_info().rss)


def _peak() -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else int(psutil.Process().memory_info().rss)


def main() -> None:
    """Measures one competitor at one size and prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("competitor", choices=COMPETITORS)
    parser.add_argument("num_samples", type=int)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps(measure(args.competitor, args.num_samples, args.repetitions)))


if __name__ == "__main__":
    main()
