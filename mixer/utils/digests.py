"""Digests of files, by which a bit that has changed since is found when they are read."""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

_MAX_BYTES = 64 * 2**20
_BYTES_AT_A_TIME = 2**20


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Gives digests of files that have just been written, but for those that would take their time to read back.

    Larger ones than 64 MiB (a large model's) are left out, and those that have a second name elsewhere: the rows of a
    buffer on disk, which are linked into a checkpoint so that nothing has to be written.

    Args:
        folder: Where they are.
        names: Their paths in it.

    Returns:
        CRC-32 by path.
    """
    found = {}
    for name in names:
        status = (folder / name).stat()
        if status.st_size <= _MAX_BYTES and status.st_nlink == 1:
            found[name] = _digest(folder / name)
    return found


def find_damaged(folder: Path, digests: Mapping[str, int]) -> str | None:
    """Finds a file that is not what was written.

    Args:
        folder: Where the files are.
        digests: What `digests_of` gave.

    Returns:
        The path of one that has changed, `None` if none has; of what is missing nothing is said.
    """
    there = ((name, digest) for name, digest in digests.items() if (folder / name).is_file())
    return next((name for name, digest in there if _digest(folder / name) != digest), None)


def _digest(path: Path) -> int:
    digest = 0
    with path.open("rb") as file:
        while piece := file.read(_BYTES_AT_A_TIME):
            digest = zlib.crc32(piece, digest)
    return digest
