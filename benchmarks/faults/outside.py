"""What injects faults from outside of the ranks: signals, disks, damaged files, a rank that is not there."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.crash import Instant
from benchmarks.faults.inside import FILLER, GO_ON
from benchmarks.faults.kinds import Kind
from benchmarks.faults.ranks import End, Ranks
from benchmarks.faults.run import NUM_STEPS, SAVE_STEPS, Start

LIMIT_SECONDS = 90.0
_DISK_SIZE = "16m"
_SECONDS_TO_SECOND = 1.2


class MissedError(RuntimeError):
    """The fault was not injected: the run had ended before."""


@dataclass(frozen=True)
class Case:
    """One fault.

    Args:
        kind: Its kind.
        num_ranks: Number of ranks.
        number: Which one of its kind.
        fault: What was drawn for it; what shows later is added.
        folder: Where it takes place.
        cut_short: The folder of an undisturbed run that was cut short, to resume.
        limit_seconds: When the watchdog ends a start of the run.
    """

    kind: Kind
    num_ranks: int
    number: int
    fault: dict[str, Any]
    folder: Path
    cut_short: Path
    limit_seconds: float = LIMIT_SECONDS

    @property
    def start(self) -> Start:
        """The start that is disturbed."""
        kind = self.kind
        return Start(str(self.folder), kind.inside, self.fault, None, kind.num_workers, kind.timeout_seconds)

    @property
    def instant(self) -> Instant:
        """The instant of the fault."""
        return Instant(self.fault["step"], self.fault.get("delay", 0.0))

    def resume(self) -> End:
        """Goes on without the fault, from the newest checkpoint or anew."""
        with_workers = Start(str(self.folder), resume="newest", num_workers=self.kind.num_workers)
        return Ranks(with_workers, self.num_ranks).wait(self.limit_seconds)


def train(case: Case) -> End:
    """Trains with a fault inside of the ranks."""
    return Ranks(case.start, case.num_ranks).wait(case.limit_seconds)


def _signalled(case: Case, number: int, to_all: bool) -> End:
    ranks = Ranks(case.start, case.num_ranks)
    is_there = ranks.wait_until(case.instant)
    ranks.send(number, None if to_all else [case.fault["rank"]])
    end = ranks.wait(case.limit_seconds)
    if not is_there:
        raise MissedError
    return end


def kill_one(case: Case) -> End:
    """Kills one rank."""
    return _signalled(case, signal.SIGKILL, to_all=False)


def kill_all(case: Case) -> End:
    """Kills all ranks."""
    return _signalled(case, signal.SIGKILL, to_all=True)


def sigterm_one(case: Case) -> End:
    """Sends SIGTERM to one rank."""
    return _signalled(case, signal.SIGTERM, to_all=False)


def sigterm_all(case: Case) -> End:
    """Sends SIGTERM to all ranks, as clusters do before they take a machine away."""
    return _signalled(case, signal.SIGTERM, to_all=True)


def sigint_one(case: Case) -> End:
    """Sends SIGINT to one rank."""
    return _signalled(case, signal.SIGINT, to_all=False)


def sigint_all(case: Case) -> End:
    """Sends SIGINT to all ranks, as a terminal does."""
    return _signalled(case, signal.SIGINT, to_all=True)


def sigint_twice(case: Case) -> End:
    """Sends SIGINT to all ranks, and once more while the update that was in progress still goes on."""
    ranks = Ranks(case.start, case.num_ranks)
    is_there = ranks.wait_until(case.instant)
    ranks.send(signal.SIGINT)
    time.sleep(_SECONDS_TO_SECOND)
    ranks.send(signal.SIGINT)
    end = ranks.wait(case.limit_seconds)
    if not is_there:
        raise MissedError
    return end


def stop_one(case: Case) -> End:
    """Stops one rank for good; what it cannot do, ending, the launcher does for it."""
    ranks = Ranks(case.start, case.num_ranks)
    is_there = ranks.wait_until(case.instant)
    ranks.send(signal.SIGSTOP, [case.fault["rank"]])
    end = ranks.wait(case.limit_seconds, apart_from=case.fault["rank"])
    if not is_there:
        raise MissedError
    return end


def kill_worker(case: Case) -> End:
    """Kills the worker process of one rank."""
    ranks = Ranks(case.start, case.num_ranks)
    is_there = ranks.wait_until(case.instant)
    workers = ranks.loader_workers(case.fault["rank"])
    for worker in workers:
        worker.kill()
    end = ranks.wait(case.limit_seconds)
    if not (is_there and workers):
        raise MissedError
    return end


def absent(case: Case) -> End:
    """Starts all ranks but one."""
    return Ranks(case.start, case.num_ranks, absent=case.fault["rank"]).wait(case.limit_seconds)


# ---- Disks ----


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mounts a small disk; needs the right to.

    Args:
        folder: Where.

    Yields:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_SIZE}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def make_read_only(folder: Path) -> None:
    """Makes a disk read-only for all that is opened from now on."""
    _run("mount", "--bind", str(folder), str(folder))
    _run("mount", "-o", "remount,bind,ro", str(folder))


def on_small_disk(case: Case) -> End:
    """Trains on a small disk, which is filled inside of a rank; room is made afterwards."""
    end = train(case)
    filler = case.folder / "disk" / FILLER
    if not filler.exists():
        raise MissedError
    filler.unlink()
    return end


def read_only(case: Case) -> End:
    """Trains in a folder that cannot be written to, until after the end."""
    disk = case.folder / "disk"
    case.start.output.mkdir()
    make_read_only(disk)
    end = train(case)
    _run("umount", str(disk))
    return end


def read_only_later(case: Case) -> End:
    """Makes the folder of a run read-only while it goes on."""
    ranks = Ranks(case.start, case.num_ranks)
    is_there = ranks.wait_until(case.instant)
    make_read_only(case.folder / "disk")
    end = ranks.wait(case.limit_seconds)
    _run("umount", "--lazy", str(case.folder / "disk"))
    if not is_there:
        raise MissedError
    return end


def two_runs(case: Case) -> End:
    """Starts a second run, in the folder of one that is in the midst of an update."""
    first = Ranks(case.start, case.num_ranks)
    is_there = first.wait_until(case.instant)
    second = Ranks(replace(case.start, inside="", resume=case.fault["resume"]), case.num_ranks)
    end = second.wait(case.limit_seconds)
    (case.folder / GO_ON).touch()
    of_first = first.wait(case.limit_seconds)
    if not is_there:
        raise MissedError
    case.fault["first"] = of_first.codes
    return end


# ---- What a run is resumed from ----


def resumed(case: Case) -> End:
    """Resumes a run that was cut short, with a fault inside of the ranks."""
    shutil.copytree(case.cut_short / "disk", case.folder / "disk")
    return Ranks(replace(case.start, resume="newest"), case.num_ranks).wait(case.limit_seconds)


def damaged(case: Case) -> End:
    """Damages a file of a run that was cut short, and resumes it."""
    shutil.copytree(case.cut_short / "disk", case.folder / "disk")
    disk, fault = case.folder / "disk", case.fault
    files = sorted(path for where in fault["where"] for path in disk.glob(where) if path.is_file())
    files = [path for path in files if path.stat().st_size]
    file = files[int(fault["file"] * len(files))]
    content = file.read_bytes()
    file.write_bytes(_DAMAGES[fault["how"]](content, int(fault["place"] * len(content)), fault["bit"]))
    fault["damaged"] = file.name
    named = str(case.start.output / f"checkpoint-{NUM_STEPS - SAVE_STEPS}")
    resume = "newest" if fault["resume"] == "newest" else named
    return Ranks(replace(case.start, resume=resume), case.num_ranks).wait(case.limit_seconds)


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


def _truncated(content: bytes, place: int, bit: int) -> bytes:
    return content[:place]


def _zeroed(content: bytes, place: int, bit: int) -> bytes:
    count = min(1 << bit, len(content) - place)
    return content[:place] + bytes(count) + content[place + count :]


_DAMAGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "flipped": _flipped,
    "truncated": _truncated,
    "zeroed": _zeroed,
}

OUTSIDE: dict[str, Callable[[Case], End]] = {
    function.__name__: function
    for function in (
        train,
        kill_one,
        kill_all,
        sigterm_one,
        sigterm_all,
        sigint_one,
        sigint_all,
        sigint_twice,
        stop_one,
        kill_worker,
        absent,
        on_small_disk,
        read_only,
        read_only_later,
        two_runs,
        resumed,
        damaged,
    )
}
ON_DISK = frozenset({"on_small_disk", "read_only", "read_only_later"})
