"""What recording, reporting and remembering cost by streams and steps: for `benchmarks.scale`."""

import tempfile
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.scale.long_ledgers import measure, write_ledger
from benchmarks.scale.planning import NUM_STREAMS, a_plan
from benchmarks.scale.term import ENTRIES, STEPS, STREAMS, Term, counted, cpu_seconds, swept
from benchmarks.speed.competitors import ROW_LENGTH, LazyRows
from mixer.ledger.intervals import default_interval
from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.loading.loaded_step import StepCounts, StepResult
from replay import ReplayBuffer

_SHOWN = (100, 1_000)  # on a page
_NUM_STEPS = (1_000, 5_000, 25_000)
_ENTRIES = (10_000, 100_000, 1_000_000)
_REPORT_STEPS = 20
_SAMPLES = (256, 65_536)  # of a step
_OF_STEPS = ("streams", "clock", "timings")  # tables
_SEALED_ROWS = 200_000  # of a part of the ledger


class Recorded:
    """A recorder with its ledger in a folder, which is given steps of one plan.

    Args:
        folder: Where the ledger goes.
        num_streams: Number of streams.
    """

    def __init__(self, folder: Path, num_streams: int):
        self.mixing, self._plan = a_plan(num_streams)
        self.ledger = Ledger(folder / "ledger", is_writer=True)
        self.ledger.begin(None, {"streams": list(self.mixing.names)})
        self.recorder = Recorder(self.mixing, self.ledger, reads_at_once=True)
        items = self._plan.counts * ROW_LENGTH
        sums = torch.from_numpy(np.append(2.0 * items + np.sqrt(np.arange(len(items))), 2.0))
        self._update = StepResult(self._plan, StepCounts(items, items), sums, 1e-3, 1.0)

    def record(self) -> None:
        """Records a step, as it is written in the end."""
        self.recorder.record(self._update)


def _steps_of(num_rows: int, num_streams: int) -> int:
    """Gives the number of steps that so many rows of the ledger hold, some of each stream at least."""
    return max(_REPORT_STEPS, num_rows // num_streams) * default_interval(num_streams)


def _recording(folder: Path, num_streams: int) -> float:
    """Gives the seconds of a CPU of a step, over as many as fill a part: most of them write nothing yet."""
    recorded, num_steps = Recorded(folder / f"record-{num_streams}", num_streams), _steps_of(_SEALED_ROWS, num_streams)

    def record() -> None:
        for _ in range(num_steps):
            recorded.record()

    return cpu_seconds(record) / num_steps


def _row_bytes(folder: Path, batch_size: int, num_streams: int) -> float:
    """Gives the bytes of a step in the sealed tables of all steps, of a ledger with numbers that vary."""
    run, num_steps = folder / f"rows-{num_streams}-{batch_size}", _steps_of(100_000, num_streams)
    write_ledger(run, num_streams, num_steps, batch_size)
    parts = [part for table in _OF_STEPS for part in (run / "ledger" / table).glob("part-*.parquet")]
    return sum(part.stat().st_size for part in parts) / num_steps


def _long_ledger(folder: Path, num_steps: int) -> Path:
    run = folder / f"steps-{num_steps}"
    if not run.exists():
        write_ledger(run, 10, num_steps)
    return run


def _report(folder: Path, num_streams: int) -> dict[str, float]:
    run = folder / f"report-{num_streams}"
    write_ledger(run, num_streams, _steps_of(0, num_streams))
    return measure(run)


def _buffer_bytes(capacity: int) -> float:
    dataset = LazyRows(2 * capacity)
    tracemalloc.start()
    buffer = ReplayBuffer(capacity, seed=0)
    buffer.remember("task", dataset)
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(buffer) == capacity
    return current


def _resuming(folder: Path, num_steps: int) -> float:
    """Gives the seconds of a CPU that a ledger takes to be cut some steps before its end."""
    run = _long_ledger(folder, num_steps)
    step = [num_steps]

    def cut() -> None:
        step[0] -= 1
        Ledger(run / "ledger", is_writer=True).begin(step[0], {})

    return cpu_seconds(cut, 1.0)


def terms() -> list[Term]:
    """Measures all of it.

    Returns:
        The terms.
    """
    with tempfile.TemporaryDirectory() as name:
        return _terms(Path(name))


def _terms(folder: Path) -> list[Term]:
    pages = {k: _report(folder, k) for k in _SHOWN}
    shown, ten = f"{_REPORT_STEPS} rows per stream", "10 streams"

    def read(num_steps: int) -> Callable[[], object]:
        return lambda: Ledger(_long_ledger(folder, num_steps) / "ledger").read("streams")

    return [
        counted("record a step", STREAMS, NUM_STREAMS, lambda k: _recording(folder, k), "written and sealed", "s"),
        *(
            counted("ledger, a step", STREAMS, NUM_STREAMS, partial(_row_bytes, folder, size), f"{size:,} samples")
            for size in _SAMPLES
        ),
        swept("ledger read whole", STEPS, _NUM_STEPS, read, ten),
        counted("ledger cut on resume", STEPS, _NUM_STEPS, lambda t: _resuming(folder, t), ten, "s"),
        counted("report: time", STREAMS, _SHOWN, lambda k: pages[k]["cpu_seconds"], shown, "s"),
        counted("report: peak memory", STREAMS, _SHOWN, lambda k: 1e6 * pages[k]["peak_megabytes"], shown),
        counted("replay buffer of references", ENTRIES, _ENTRIES, _buffer_bytes),
    ]
