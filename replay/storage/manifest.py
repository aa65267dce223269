"""What a checkpoint notes of rows on disk, beside links to their files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mixer.checkpoint import write_json
from replay.storage.number_set import NumberSet
from replay.storage.row_file import RowFile, write_rows, write_whole
from replay.storage.segment import Segment

_MANIFEST, _LIVE, _PENDING = "rows.json", "live.int64", "pending.arrow"
_FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What is known of rows on disk.

    Args:
        segments: The segments.
        next_number: The number that the next row will have.
        first_pending: Number of the first row that is in no segment yet.
        pending_bytes: Size of these rows, with those that were dropped.
        pending: The bytes of those that were not, by number.
    """

    segments: Sequence[Segment]
    next_number: int
    first_pending: int
    pending_bytes: int
    pending: dict[int, bytes]


def remove_manifest(folder: Path) -> None:
    """Declares that a folder is about to be written.

    Args:
        folder: The checkpoint's folder; it is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MANIFEST).unlink(missing_ok=True)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes a manifest into a checkpoint.

    Args:
        folder: The checkpoint's folder, where the segments' files are already.
        manifest: What is written.
    """

    def write_live(file: BinaryIO) -> None:
        for segment in manifest.segments:
            file.write(segment.live.numbers().astype("<i8").tobytes())

    write_whole(folder / _LIVE, write_live)
    numbers = np.fromiter(manifest.pending, dtype=np.int64, count=len(manifest.pending))
    write_rows(folder / _PENDING, numbers, list(manifest.pending.values()))
    names = [_LIVE, _PENDING, *(segment.name for segment in manifest.segments)]
    content = {
        "format": _FORMAT,
        "next_number": manifest.next_number,
        "first_pending": manifest.first_pending,
        "pending_bytes": manifest.pending_bytes,
        "segments": [
            [segment.first, segment.last, segment.num_rows, segment.num_bytes, len(segment.live)]
            for segment in manifest.segments
        ],
        "files": {name: (folder / name).stat().st_size for name in names},
    }
    write_json(folder / _MANIFEST, content)


def read_manifest(folder: Path) -> Manifest:
    """Reads a manifest from a checkpoint.

    Args:
        folder: The checkpoint's folder.

    Returns:
        What was written.

    Raises:
        ValueError: If a file is missing or torn; it is named.
    """
    content = _read_content(folder)
    for name, size in content["files"].items():
        _check_size(folder / name, size)
    segments = []
    with (folder / _LIVE).open("rb") as file_of_live:
        for first, last, num_rows, num_bytes, num_live in content["segments"]:
            live = np.frombuffer(file_of_live.read(8 * num_live), dtype="<i8").astype(np.int64)
            segments.append(Segment(first, last, num_rows, num_bytes, NumberSet(live)))
    file = RowFile(folder / _PENDING)
    pending = {number: bytes(file.read(index)) for index, number in enumerate(file.numbers.tolist())}
    return Manifest(segments, content["next_number"], content["first_pending"], content["pending_bytes"], pending)


def _read_content(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.is_file():
        raise ValueError(f"{path} is missing. Load a checkpoint that was written to its end, of rows on disk.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is torn ({error}). Load an earlier checkpoint.") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{path} is not of format {_FORMAT}. Load a checkpoint of this version.")
    return content


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing. Load an earlier checkpoint.")
    if path.stat().st_size != size:
        found = path.stat().st_size
        raise ValueError(f"{path} is torn: it has {found} bytes instead of {size}. Load an earlier checkpoint.")
