"""Runs that are resumed from damaged files, or with a fault inside of the ranks."""

import shutil
from collections.abc import Callable
from dataclasses import replace

from benchmarks.faults.case import Case, MissedError
from benchmarks.faults.ranks import End, Ranks
from benchmarks.faults.run import NUM_STEPS, SAVE_STEPS


def resumed(case: Case) -> End:
    """Resumes a run that was cut short, with a fault inside of the ranks."""
    shutil.copytree(case.cut_short / "disk", case.folder / "disk")
    return Ranks(replace(case.start, resume="newest"), case.num_ranks).wait(case.kind.limit_seconds)


def damaged(case: Case) -> End:
    """Damages a file of a run that was cut short, and resumes it."""
    shutil.copytree(case.cut_short / "disk", case.folder / "disk")
    disk, fault = case.folder / "disk", case.fault
    files = sorted(path for where in fault["where"] for path in disk.glob(where) if path.is_file())
    files = [path for path in files if path.stat().st_size]
    file = files[int(fault["file"] * len(files))]
    content = file.read_bytes()
    changed = _DAMAGES[fault["how"]](content, int(fault["place"] * len(content)), fault["bit"])
    if changed == content:
        raise MissedError
    file.write_bytes(changed)
    # The end of a ledger's tail may be cut off by a crash, too: what lacks rows then is the table.
    fault["damaged"] = f"ledger/{file.parent.name}" if file.suffix == ".arrow" and "ledger" in file.parts else file.name
    named = str(case.start.output / f"checkpoint-{NUM_STEPS - SAVE_STEPS}")
    resume = "newest" if fault["resume"] == "newest" else named
    return Ranks(replace(case.start, resume=resume), case.num_ranks).wait(case.kind.limit_seconds)


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


def _truncated(content: bytes, place: int, bit: int) -> bytes:
    return content[:place]


def _zeroed(content: bytes, place: int, bit: int) -> bytes:
    if not any(content[place:]):  # what is 0 already would be no damage
        place = 0
    place += len(content[place:]) - len(content[place:].lstrip(b"\0"))
    count = min(1 << bit, len(content) - place)
    return content[:place] + bytes(count) + content[place + count :]


_DAMAGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "flipped": _flipped,
    "truncated": _truncated,
    "zeroed": _zeroed,
}
