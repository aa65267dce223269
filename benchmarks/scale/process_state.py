"""What a process holds, sampled over a long run, and whether it stayed flat."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

WARM_UP = 0.2
MOST_GROWTH = 0.01
_NUM_QUARTERS = 4
_MEBIBYTE, _KIBIBYTES = 2.0**20, 2.0**10  # bytes in a mebibyte, and kibibytes in one
# These may grow by MOST_GROWTH and by nothing between the first quarter after the warm-up and the last.
MEMORY, COUNTS = ("rss_mib", "anonymous_mib"), ("files", "threads", "children")
# Of these the most in a quarter is compared: they come and go, and forked workers share all pages with their parent at
# first, fewer and fewer while either writes, and all again with those that are forked for the next pass over the data.
_PEAKS = ("anonymous_mib", "children_mib", *COUNTS)
# Memory that no file holds, pages that processes share counted in parts. PSS and USS hold pages of files too, such as
# torch's libraries, and change as soon as another program on the machine loads these or ends.
_ANONYMOUS = ("Pss_Anon", "Pss_Shmem", "SwapPss")


@dataclass(frozen=True)
class ProcessState:
    """What a process and its children hold at one moment.

    Args:
        step: Number of steps done.
        rss_mib: Resident memory of the process alone, in mebibytes. That of a forked child is its parent's at the fork.
        anonymous_mib: Memory of the process and its children that no file holds, pages that they share counted once.
        children_mib: Memory that the children have written, each for itself.
        arrow_mib: Memory that Arrow has taken for tables.
        objects: Objects that Python's garbage collector follows, those of before `begin` left out.
        files: Open file descriptors.
        threads: Threads.
        children: Child processes.
    """

    step: int
    rss_mib: float
    anonymous_mib: float
    children_mib: float
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
    """Samples this process, after a collection of what is not reachable any more and of what Arrow keeps for later.

    Args:
        step: Number of steps done.

    Returns:
        What it holds.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    process = psutil.Process()
    children = process.children(recursive=True)
    own, *others = (_memory(one.pid) for one in (process, *children))
    return ProcessState(
        step=step,
        rss_mib=own["Rss"],
        anonymous_mib=sum(one.get(key, 0.0) for one in (own, *others) for key in _ANONYMOUS),
        children_mib=sum(one.get("Private_Dirty", 0.0) for one in others),
        arrow_mib=pa.total_allocated_bytes() / _MEBIBYTE,
        objects=len(gc.get_objects()),
        files=process.num_fds(),
        threads=process.num_threads(),
        children=len(children),
    )


def _memory(process_id: int) -> dict[str, float]:
    """Gives what Linux says of a process's memory, in mebibytes; nothing of one that has just ended."""
    try:
        lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: int(size) / _KIBIBYTES for name, size in (line.removesuffix("kB").split(":") for line in lines)}


def growth(states: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> dict[str, Any]:
    """Compares the quarters of a run after its warm-up.

    Args:
        states: Samples in the order of their steps, as plain data.
        seconds: `[num_blocks]`: time of a step, as means over blocks of steps in order.

    Returns:
        For each thing that is sampled the median of the `first` quarter and of the `last` (the most, of those that come
        and go), and the relative `growth` from the one to the other; for `seconds` the medians
        of the `second` quarter and the `last` of the whole run, and their `ratio`.
    """
    kept = list(states)[int(len(states) * WARM_UP) :]
    found: dict[str, Any] = {}
    for field in fields(ProcessState)[1:]:
        quarters = np.array_split([one[field.name] for one in kept], _NUM_QUARTERS)
        typical = np.max if field.name in _PEAKS else np.median
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
