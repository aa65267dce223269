"""The undisturbed runs of a number of ranks, and the faults that are held against them."""

import contextlib
import random
import shutil
import threading
from pathlib import Path
from typing import Any

from benchmarks.faults.case import Case, MissedError, Outcome
from benchmarks.faults.data import READ, STREAM, note_reads
from benchmarks.faults.disks import ON_DISK, small_disk
from benchmarks.faults.judge import judge
from benchmarks.faults.kinds import Kind, Known
from benchmarks.faults.notes import draw_instant, read_events
from benchmarks.faults.ranks import Ranks
from benchmarks.faults.run import LENGTHS, NUM_STEPS, SAVE_STEPS, Start

_LIMIT_SECONDS = 300.0


class Bench:
    """Runs that nobody disturbs, each done when it is first needed, and the faults that are held against them.

    Args:
        folder: Where the runs are kept.
        num_ranks: Number of ranks.
        seed: Seed of all that is drawn.
    """

    def __init__(self, folder: Path, num_ranks: int, seed: int):
        self.num_ranks, self._seed = num_ranks, seed
        self._folder = folder / f"ranks-{num_ranks}"
        self._lock = threading.Lock()

    def undisturbed(self, num_workers: int = 0) -> Path:
        """Gives the folder of the run to its end; evaluation may draw other random numbers in workers."""
        return self._done(f"whole-{num_workers}", num_workers=num_workers)

    @property
    def _cut_short(self) -> Path:
        return self._done("cut-short", stops_at=NUM_STEPS - SAVE_STEPS + 1)

    @property
    def _known(self) -> Known:
        return Known(self.num_ranks, self._instant, self._read, LENGTHS[STREAM])

    def _instant(self, generator: random.Random) -> dict[str, Any]:
        """Draws an instant of a run, in its first nine tenths: it must not have ended by then."""
        events = read_events(self.undisturbed())
        latest = events[0].time + 0.9 * (events[-1].time - events[0].time)
        early = [event for event in events if event.time <= latest]
        instant = draw_instant(early, generator.randrange(2**32))
        return {"step": instant.step, "delay": round(instant.delay, 4)}

    def _read(self) -> list[int]:
        noted = self._done("read", inside=note_reads) / READ
        return sorted({int(line) for line in noted.read_text().split()})

    def _done(self, name: str, **what: Any) -> Path:
        """Does a run that nobody disturbs, if that was not done yet."""
        folder = self._folder / name
        with self._lock:
            if not folder.exists():
                end = Ranks(Start(str(folder), **what), self.num_ranks).wait(_LIMIT_SECONDS)
                if not end.is_well:
                    raise RuntimeError(f"The run without a fault failed:\n{end.consoles[0][-4000:]}")
        return folder

    def inject(self, kind: Kind, number: int) -> Outcome:
        """Injects a fault.

        Args:
            kind: Its kind.
            number: Which one of its kind.

        Returns:
            What became of it; its folder stays if a promise was broken.

        Raises:
            RuntimeError: If a run that nobody disturbs fails.
        """
        key = f"{self._seed}/{kind.name}/{self.num_ranks}/{number}"
        fault = kind.draw(random.Random(key), self._known)
        folder = self._folder / f"{kind.name}-{number}"
        case = Case(kind, self.num_ranks, number, fault, folder, self._cut_short)
        with small_disk(folder / "disk") if kind.how in ON_DISK else contextlib.nullcontext():
            try:
                undisturbed = self.undisturbed(kind.num_workers)
                outcome = judge(case, undisturbed, case.train() if kind.how is None else kind.how(case))
            except MissedError:
                outcome = Outcome(kind.name, self.num_ranks, number, fault, was_injected=False)
        if not outcome.broken:
            shutil.rmtree(folder)
        return outcome
