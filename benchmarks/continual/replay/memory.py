"""RAM that a buffer takes, each in a process of its own: what resident anonymous memory (RssAnon) grows by.

References: 1e6 entries under two selections and two retrievals, offered one and a half times so many samples. Disk:
samples of 1 KB, with growing numbers of entries, before and after 200 draws of 32 of them are read. Maps of files are
no anonymous memory: the system takes them back when it needs to.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import show
from benchmarks.continual.replay.subjects import STEP_SIZE, Setting, Subject
from replay.storage import OnDisk, Storage

_CASES = (("Reservoir", "Uniform"), ("ClassBalanced", "Uniform"), ("Reservoir", "LeastRecent"))
_NUM_DRAWS = 200
_MEGABYTE = 1e6
COLUMNS = 32  # bytes of an entry that the buffer needs


def resident() -> int:
    """Gives the anonymous resident memory of this process.

    Returns:
        Bytes.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


def measure_here(selection: str, retrieval: str, capacity: int, folder: str | None) -> dict[str, float]:
    """Measures in this process, which should have done nothing else.

    Args:
        selection: Name of the selection.
        retrieval: Name of the retrieval.
        capacity: Number of entries.
        folder: Where contents are kept; `None` keeps references.

    Returns:
        Bytes: `filled`, and after reading `read`.
    """

    def new(count: int, name: str) -> Subject:
        storage: Storage | str = "references" if folder is None else OnDisk(Path(folder) / name)
        return Subject(selection, Setting(count, 10), storage, retrieval)

    def read(subject: Subject, num_draws: int) -> None:
        cursor, reader = subject.buffer.new_cursor(0), subject.buffer.reader({})
        for _ in range(num_draws):
            start = cursor.advance(STEP_SIZE)
            reader.__getitems__(cursor.references(range(start, start + STEP_SIZE)).tolist())

    small = new(2_048, "small")  # so that what is loaded once does not count
    small.fill(3_000)
    read(small, 2)
    gc.collect()
    before = resident()
    subject = new(capacity, "large")
    subject.fill(capacity if folder else capacity * 3 // 2)
    gc.collect()
    filled = resident() - before
    read(subject, _NUM_DRAWS)
    gc.collect()
    assert len(subject.buffer) == capacity
    return {"filled": filled, "read": resident() - before}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measures all cases.

    Args:
        args: The command line.

    Returns:
        `references` and `disk`: for each case its `entries` and bytes.
    """
    entries = 20_000 if args.quick else 1_000_000
    rows = (2_000, 6_000) if args.quick else (10_000, 100_000, 400_000)
    run = measure_here if args.quick else _in_process
    references = {}
    for selection, retrieval in _CASES:
        figures = run(selection, retrieval, entries, None)
        references[f"{selection}, {retrieval}"] = {"entries": entries, **figures}
    disk = {}
    for count in rows:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            disk[f"{count:,} rows of 1 KB"] = {"entries": count, **run("Reservoir", "Uniform", count, folder)}
    return {"references": references, "disk": disk}


def _in_process(*case: Any) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.continual.replay.memory", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def show_figures(figures: Mapping[str, Any]) -> None:
    """Prints them.

    Args:
        figures: What `measure` gave.
    """
    rows = [[f"{kind}: {name}", *_cells(own)] for kind in ("references", "disk") for name, own in figures[kind].items()]
    columns = ["RAM", "MB filled", "bytes an entry", "MB over its columns", "MB after reading"]
    show("Growth of RssAnon in a fresh process", columns, rows)
    disk = list(figures["disk"].values())
    counts, sizes = [own["entries"] for own in disk], [own["filled"] for own in disk]
    print(f"Disk: {np.polyfit(counts, sizes, 1)[0]:.1f} bytes more an entry; its columns are {COLUMNS}.\n")


def _cells(own: Mapping[str, float]) -> list[str]:
    over = own["filled"] - COLUMNS * own["entries"]
    cells = [own["filled"] / _MEGABYTE, own["filled"] / own["entries"], over / _MEGABYTE, own["read"] / _MEGABYTE]
    return [f"{cell:.1f}" for cell in cells]


def main(argv: Sequence[str]) -> None:
    """Measures one case and prints it.

    Args:
        argv: The case, as JSON.
    """
    print(json.dumps(measure_here(*json.loads(argv[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
