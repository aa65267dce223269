"""Files that are there whole or not at all, and found out where they were damaged."""

import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixer.utils.bounded import load_json

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
        raise ValueError(f"{path} holds something else than it should. Resume from an earlier checkpoint.")
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
        f"{file} has format {version!r}, and this version reads up to {known}: upgrade adaptive-mixer to the version "
        "that wrote it, or a later one"
    )


def sync_to_disk(path: Path) -> None:
    """Makes sure that a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
