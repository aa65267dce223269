"""The undisturbed runs of a number of ranks, and the faults that are held against them."""

import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

from benchmarks.crash import Event, draw_instants, read_events
from benchmarks.faults.case import LIMIT_SECONDS, Case, MissedError
from benchmarks.faults.data import READ, STREAM
from benchmarks.faults.disks import ON_DISK, small_disk
from benchmarks.faults.judge import judge
from benchmarks.faults.kinds import Kind, Known
from benchmarks.faults.outcome import Outcome
from benchmarks.faults.outside import OUTSIDE
from benchmarks.faults.ranks import Ranks
from benchmarks.faults.run import LENGTHS, NUM_STEPS, SAVE_STEPS, Start


class Bench:
    """Runs that nobody disturbs, one to its end and one cut short after its last checkpoint but one.

    Args:
        folder: Where the runs are kept.
        num_ranks: Number of ranks.
        seed: Seed of all that is drawn.
        limit_seconds: When the watchdog ends a start of a run.

    Raises:
        RuntimeError: If a run fails by itself.
    """

    def __init__(self, folder: Path, num_ranks: int, seed: int, limit_seconds: float = LIMIT_SECONDS):
        self.num_ranks, self._seed, self._limit_seconds = num_ranks, seed, limit_seconds
        self._folder = folder / f"ranks-{num_ranks}"
        # Evaluation may draw other random numbers in workers, and the run goes on with others then.
        self._wholes = {num_workers: self._folder / f"whole-{num_workers}" for num_workers in (0, 1)}
        for num_workers, whole in self._wholes.items():
            self._run(Start(str(whole), num_workers=num_workers))
        self._cut_short = self._folder / "cut-short"
        self._run(Start(str(self._cut_short), stops_at=NUM_STEPS - SAVE_STEPS + 1))
        read = self._folder / "read"
        self._run(Start(str(read), "note_reads"))
        events = read_events(self._wholes[0])
        self._known = Known(num_ranks, lambda generator: _instant(events, generator), _read(read), LENGTHS[STREAM])

    def _run(self, start: Start) -> None:
        end = Ranks(start, self.num_ranks).wait(self._limit_seconds)
        if not end.is_well:
            raise RuntimeError(f"The run without a fault failed:\n{end.consoles[0][-4000:]}")

    def inject(self, kind: Kind, number: int) -> Outcome:
        """Injects a fault.

        Args:
            kind: Its kind.
            number: Which one of its kind.

        Returns:
            What became of it; its folder stays if a promise was broken.
        """
        key = f"{self._seed}/{kind.name}/{self.num_ranks}/{number}"
        fault = kind.draw(random.Random(key), self._known)
        folder = self._folder / f"{kind.name}-{number}"
        case = Case(kind, self.num_ranks, number, fault, folder, self._cut_short, self._limit_seconds)
        with small_disk(folder / "disk") if kind.how in ON_DISK else contextlib.nullcontext():
            try:
                outcome = judge(case, self._wholes[kind.num_workers], OUTSIDE[kind.how](case))
            except MissedError:
                outcome = Outcome(kind.name, self.num_ranks, number, fault, was_injected=False)
        if not outcome.broken:
            shutil.rmtree(folder)
        return outcome


def _instant(events: list[Event], generator: random.Random) -> dict[str, Any]:
    """Draws an instant of a run, in its first nine tenths: it must not have ended by then."""
    early = [event for event in events if event.time <= events[0].time + 0.9 * (events[-1].time - events[0].time)]
    [instant] = draw_instants(early, 1, generator.randrange(2**32))
    return {"step": instant.step, "delay": round(instant.delay, 4)}


def _read(folder: Path) -> list[int]:
    return sorted({int(line) for line in (folder / READ).read_text().split()})
