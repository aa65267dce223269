"""Files: written whole or not at all, checked by digests, named safely."""

import contextlib
import errno
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mixer.utils.validation import load_json

_DIGEST_ENTRY = "crc32"


def write_json(path: Path, content: Mapping[str, Any], sealed: bool = False) -> None:
    """Writes a JSON file so that it is there whole or not at all, even if the machine stops.

    Args:
        path: The file.
        content: Plain data; floats are kept to the bit.
        sealed: Whether to add a digest of the content, by which `read_json` finds a digit that has changed since.
    """
    text = json.dumps(content, allow_nan=False)
    if sealed:
        text = json.dumps({**content, _DIGEST_ENTRY: zlib.crc32(text.encode())}, allow_nan=False)
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Writes a text file so that it is there whole or not at all, even if the machine stops.

    Args:
        path: The file.
        text: What stands in it.

    Raises:
        OSError: If it cannot be written; the file is named, and what was there before stays.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_to_disk(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file of a checkpoint.

    Args:
        path: The file.

    Returns:
        What `write_json` wrote.

    Raises:
        ValueError: If it is missing, torn, changed since it was written, or something else.
    """
    try:
        content = load_json(path)
    except (OSError, ValueError) as error:
        state = "torn" if path.is_file() else "missing"
        raise ValueError(f"{path} is {state} ({error}). Resume from an earlier checkpoint.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object. Resume from an earlier checkpoint.")
    digest = content.pop(_DIGEST_ENTRY, None)
    if digest is not None and digest != zlib.crc32(json.dumps(content).encode()):
        raise ValueError(f"{path} is damaged: its content is not what was written. Resume from an earlier checkpoint.")
    return content


def newer_version(file: str, version: Any, known: int) -> str:
    """Says that a file is of a format that this version does not read, and the way out.

    Args:
        file: The file's name.
        version: The format that it has.
        known: The newest that is read.

    Returns:
        The message, without a full stop.
    """
    return (
        f"{file} has format {version!r}, but this version reads up to {known}: upgrade adaptive-mixer to the version "
        "that wrote it, or a later one"
    )


def sync_to_disk(path: Path) -> None:
    """Makes sure that a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    digests = {}
    for name in names:
        status = (folder / name).stat()
        if status.st_size <= _MAX_BYTES and status.st_nlink == 1:
            digests[name] = _digest(folder / name)
    return digests


def find_damaged(folder: Path, digests: Mapping[str, int]) -> str | None:
    """Finds a file that is not what was written.

    Args:
        folder: Where the files are.
        digests: What `digests_of` gave.

    Returns:
        The path of one that has changed, `None` if none has; of what is missing nothing is said.
    """
    existing = ((name, digest) for name, digest in digests.items() if (folder / name).is_file())
    return next((name for name, digest in existing if _digest(folder / name) != digest), None)


def _digest(path: Path) -> int:
    digest = 0
    with path.open("rb") as file:
        while piece := file.read(_BYTES_AT_A_TIME):
            digest = zlib.crc32(piece, digest)
    return digest


# Device names of Windows, with any extension.
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_REFUSED = '<>:"/\\|?*%'
_MOST_BYTES = 180


def folder_name(name: str) -> str:
    """Names a folder after something: one step down from where it stands, on every file system.

    Args:
        name: What it is named after.

    Returns:
        The name itself, where it can be a folder's; else with `%` and the bytes of what cannot stand in one, and cut
        with a digest behind where it is too long. Two names never share a folder.

    Example:
        >>> folder_name("01-math"), folder_name(".."), folder_name("a/b")
        ('01-math', '%2E%2E', 'a%2Fb')
    """
    edges = {len(name) - 1} if name.endswith((".", " ")) else set()
    if not name.strip(".") or _RESERVED.fullmatch(name):
        edges.add(0)
    kept = "".join(
        _escaped(character) if place in edges or character in _REFUSED or not character.isprintable() else character
        for place, character in enumerate(name)
    )
    if len(kept.encode()) <= _MOST_BYTES:
        return kept or "%"
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{kept.encode()[:_MOST_BYTES].decode('utf-8', 'ignore')}%{digest}"


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


class WriteError(OSError):
    """A file of the run could not be written.

    Attributes:
        says_what_is_safe: Whether the message says what of the run is safe, and how it goes on.
    """

    says_what_is_safe = False


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Has errors of the system say that a file of the run could not be written.

    Args:
        path: The file that is written, or its folder.

    Yields:
        Nothing.

    Raises:
        WriteError: In place of an error of the system; it names the path.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
