"""Small disks, disks that are read-only, and a second run on the same one; all but the last need the right to mount."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.faults.case import Case, MissedError
from benchmarks.faults.filling import FILLER
from benchmarks.faults.ranks import End, Ranks
from benchmarks.faults.waits import GO_ON

_DISK_SIZE = "16m"


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
    end = Ranks(case.start, case.num_ranks).wait(case.kind.limit_seconds)
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
    end = Ranks(case.start, case.num_ranks).wait(case.kind.limit_seconds)
    _run("umount", str(disk))
    return end


def read_only_later(case: Case) -> End:
    """Makes the folder of a run read-only while it goes on."""
    ranks = Ranks(case.start, case.num_ranks)
    is_active = ranks.wait_until(case.instant)
    make_read_only(case.folder / "disk")
    end = ranks.wait(case.kind.limit_seconds)
    _run("umount", "--lazy", str(case.folder / "disk"))
    if not is_active:
        raise MissedError
    return end


def two_runs(case: Case) -> End:
    """Starts a second run, in the folder of one that is in the midst of a step."""
    first = Ranks(case.start, case.num_ranks)
    is_active = first.wait_until(case.instant)
    second = Ranks(replace(case.start, inside=None, resume=case.fault["resume"]), case.num_ranks)
    end = second.wait(case.kind.limit_seconds)
    (case.folder / GO_ON).touch()
    of_first = first.wait(case.kind.limit_seconds)
    if not is_active:
        raise MissedError
    case.fault["first"] = of_first.codes
    return end


ON_DISK = frozenset({on_small_disk, read_only, read_only_later})
