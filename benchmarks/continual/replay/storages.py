"""Rates by storage and retrieval: inserting contents, drawing, and reading what was drawn.

Samples have 1 KB: 128 int64. *Inserting* is what `benchmarks.continual.replay.rates` does, hot, of a reservoir, with
the contents of what is accepted, half of the samples, kept in memory or on disk. As files are written once 16 MiB are
there, about 14,000 rows, and anew once half of a file is dropped, a turn has as many blocks of steps as that takes,
with new random numbers each. 1,000 slots on disk lie in memory as yet: compare 100,000 and 1,000,000.

*Drawing* is the next 32 entries of a full buffer and their addresses, under each retrieval. `LeastRecent` closes its
line up once in capacity/32 draws, at O(capacity): the median leaves that out. *Reading* draws 32 and reads them too,
off data sets (references; those of 100 tasks lie in up to 32 data sets, each asked once), memory or disk.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.continual.replay.rates import insert_turn
from benchmarks.continual.replay.subjects import STEP_SIZE, Setting, Subject
from benchmarks.continual.replay.turns import MIDDLE, in_turns, show_rates
from replay.storage import OnDisk, Storage

STORAGES = ("references", "memory", "disk")
RETRIEVALS = ("Uniform", "LeastRecent")
_BLOCKS = 256  # a turn of inserting contents: 32,768 rows are accepted
_DRAWS = 20


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measures all of it.

    Args:
        args: The command line.

    Returns:
        `inserting` and `reading` by storage, `drawing` by retrieval; see `figures_of`.
    """
    figures: dict[str, Any] = {"inserting": {}, "reading": {}, "drawing": {}}
    for storage in STORAGES:
        with _subjects(args, args.capacities, storage=storage) as subjects:
            # First, as inserting leaves hardly any but the newest task in a small buffer.
            figures["reading"][storage] = in_turns(subjects, args.rounds, _reading(subjects))
            figures["inserting"][storage] = in_turns(subjects, args.storage_rounds, _inserting(args.quick))
        print(f"{storage} done", flush=True)
    for retrieval in RETRIEVALS:
        with _subjects(args, args.capacities, retrieval=retrieval) as subjects:
            figures["drawing"][retrieval] = in_turns(subjects, args.rounds, _drawing(subjects))
    return figures


@contextmanager
def _subjects(
    args: argparse.Namespace, capacities: list[int], storage: str = "references", retrieval: str = "Uniform"
) -> Iterator[dict[Setting, Subject]]:
    """Fills buffers: tasks matter to references alone."""
    numbers_of_tasks = args.tasks if storage == "references" else [MIDDLE]
    settings = [Setting(capacity, tasks) for capacity in capacities for tasks in numbers_of_tasks]
    settings.append(Setting(capacities[0], numbers_of_tasks[0], copy=1))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        subjects = {}
        for number, setting in enumerate(settings):
            where: Storage | str = OnDisk(Path(folder) / str(number)) if storage == "disk" else storage
            subjects[setting] = Subject("Reservoir", setting, where, retrieval)
            subjects[setting].settle()
        yield subjects


def _inserting(is_quick: bool) -> Callable[[Subject, int], float]:
    num_blocks = 16 if is_quick else _BLOCKS

    def turn(subject: Subject, number: int) -> float:
        return float(np.mean([insert_turn(subject, number * num_blocks + block) for block in range(num_blocks)]))

    return turn


def _drawing(subjects: Mapping[Setting, Subject]) -> Callable[[Subject, int], float]:
    cursors = {id(subject): subject.buffer.new_cursor(0) for subject in subjects.values()}

    def turn(subject: Subject, number: int) -> float:
        cursor = cursors[id(subject)]

        def draw() -> None:
            start = cursor.advance(STEP_SIZE)
            cursor.references(range(start, start + STEP_SIZE))

        return _time(draw)

    return turn


def _reading(subjects: Mapping[Setting, Subject]) -> Callable[[Subject, int], float]:
    cursors = {id(subject): subject.buffer.new_cursor(0) for subject in subjects.values()}
    readers = {id(subject): subject.buffer.reader({}) for subject in subjects.values()}

    def turn(subject: Subject, number: int) -> float:
        cursor, reader = cursors[id(subject)], readers[id(subject)]

        def read() -> None:
            start = cursor.advance(STEP_SIZE)
            reader.__getitems__(cursor.references(range(start, start + STEP_SIZE)).tolist())

        return _time(read)

    return turn


def _time(call: Callable[[], None]) -> float:
    call()
    gc.disable()
    started = time.perf_counter()
    for _ in range(_DRAWS):
        call()
    seconds = time.perf_counter() - started
    gc.enable()
    return seconds / (_DRAWS * STEP_SIZE) * 1e6


def show_figures(figures: Mapping[str, Any]) -> None:
    """Prints them.

    Args:
        figures: What `measure` gave.
    """
    titles = {
        "inserting": "Inserting by storage (1 KB samples, Reservoir)",
        "drawing": "Drawing 32 and their addresses, by retrieval",
        "reading": "Drawing 32 and reading them, by storage",
    }
    for kind, title in titles.items():
        show_rates(title, figures[kind])
