"""What a process holds, sampled over a long run, and whether it stayed flat."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

WARM_UP = 0.2
MOST_GROWTH = 0.01
_NUM_QUARTERS = 4
_MEBIBYTE = 2.0**20
# These may grow by so much between the first quarter after the warm-up and the last.
MEMORY, COUNTS = ("rss_mib", "pss_mib", "uss_mib"), ("files", "threads", "children")


@dataclass(frozen=True)
class ProcessState:
    """What a process and its children hold at one moment.

    Args:
        step: Number of updates done.
        rss_mib: Resident memory, in mebibytes.
        pss_mib: Resident memory, pages that are shared counted in parts.
        uss_mib: Memory that would be free if the process ended.
        arrow_mib: Memory that Arrow has taken for tables.
        objects: Objects that Python's garbage collector follows, those of before `begin` left out.
        files: Open file descriptors.
        threads: Threads.
        children: Child processes.
    """

    step: int
    rss_mib: float
    pss_mib: float
    uss_mib: float
    arrow_mib: float
    objects: int
    files: int
    threads: int
    children: int


def begin() -> None:
    """Has later samples leave out the objects that there are by now, those of imported packages above all."""
    gc.collect()
    gc.freeze()


def sample(step: int) -> ProcessState:
    """Samples this process, after a collection of what is not reachable any more.

    Args:
        step: Number of updates done.

    Returns:
        What it holds, the memory of its children added.
    """
    gc.collect()
    process = psutil.Process()
    children = process.children(recursive=True)
    memory = [one.memory_full_info() for one in (process, *children)]
    return ProcessState(
        step=step,
        rss_mib=sum(one.rss for one in memory) / _MEBIBYTE,
        pss_mib=sum(one.pss for one in memory) / _MEBIBYTE,
        uss_mib=sum(one.uss for one in memory) / _MEBIBYTE,
        arrow_mib=pa.total_allocated_bytes() / _MEBIBYTE,
        objects=len(gc.get_objects()),
        files=process.num_fds(),
        threads=process.num_threads(),
        children=len(children),
    )


def growth(states: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> dict[str, Any]:
    """Compares the quarters of a run after its warm-up.

    Args:
        states: Samples in the order of their steps, as plain data.
        seconds: `[num_blocks]`: time of a step, as means over blocks of steps in order.

    Returns:
        For each thing that is sampled the median of the `first` quarter and of the `last` (the most, of what is counted
        in `COUNTS`: files come and go), and the relative `growth` from the one to the other; for `seconds` the medians
        of the `second` quarter and the `last` of the whole run, and their `ratio`.
    """
    kept = list(states)[int(len(states) * WARM_UP) :]
    found: dict[str, Any] = {}
    for field in fields(ProcessState)[1:]:
        quarters = np.array_split([one[field.name] for one in kept], _NUM_QUARTERS)
        typical = np.max if field.name in COUNTS else np.median
        first, last = float(typical(quarters[0])), float(typical(quarters[-1]))
        found[field.name] = {"first": first, "last": last, "growth": last / first - 1.0 if first else 0.0}
    quarters = np.array_split(np.asarray(seconds), _NUM_QUARTERS)
    second, last = float(np.median(quarters[1])), float(np.median(quarters[-1]))
    return {**found, "seconds": {"second": second, "last": last, "ratio": last / second}}


def broken_bounds(figures: Mapping[str, Any], where: str) -> list[str]:
    """Says what did not stay flat.

    Args:
        figures: What `growth` gave.
        where: Of which process.

    Returns:
        A sentence for each bound that is broken.
    """
    found = [
        f"{where}: {name} grew by {figures[name]['growth']:.2%}, more than {MOST_GROWTH:.0%}"
        for name in MEMORY
        if figures[name]["growth"] > MOST_GROWTH
    ]
    found += [
        f"{where}: {name} grew from {figures[name]['first']:g} to {figures[name]['last']:g}"
        for name in COUNTS
        if figures[name]["last"] > figures[name]["first"]
    ]
    return found


def as_rows(states: Sequence[ProcessState]) -> list[dict[str, float]]:
    """Gives samples as plain data.

    Args:
        states: The samples.

    Returns:
        One mapping each.
    """
    return [asdict(one) for one in states]
