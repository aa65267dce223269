"""What a checkpoint notes of rows on disk, beside links to their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mixer.utils.bounded import load_json, refusing_damage, whole_number
from mixer.utils.files import write_json
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
    try:
        with refusing_damage(f"{folder / _MANIFEST}"):
            for name, size in content["files"].items():
                _check_size(folder / name, size)
            counts = (whole_number(content[name], name) for name in ("next_number", "first_pending", "pending_bytes"))
            next_number, first_pending, pending_bytes = counts
            segments = _read_segments(folder / _LIVE, content["segments"], first_pending)
    except ValueError as error:
        if str(folder) in str(error):
            raise
        raise ValueError(f"{folder / _MANIFEST} is damaged ({error}). Load an earlier checkpoint.") from error
    file = RowFile(folder / _PENDING)
    pending = {number: bytes(file.read(index)) for index, number in enumerate(file.numbers.tolist())}
    if not first_pending <= next_number or any(not first_pending <= number < next_number for number in pending):
        raise ValueError(
            f"{folder / _MANIFEST} is damaged: its numbers of rows do not fit. Load an earlier checkpoint."
        )
    return Manifest(segments, next_number, first_pending, pending_bytes, pending)


def _read_segments(path: Path, described: Sequence[Sequence[Any]], end: int) -> list[Segment]:
    """Reads which rows are live, of segments that follow each other up to a number."""
    left, segments, after = path.stat().st_size // 8, [], 0
    with path.open("rb") as file:
        for first, last, num_rows, num_bytes, num_live in described:
            whole_number(first, "the first row of a segment", after, end - 1)
            whole_number(last, "its last row", first, end - 1)
            whole_number(num_rows, "its number of rows", 1, last - first + 1)
            whole_number(num_bytes, "its number of bytes")
            left -= whole_number(num_live, "its number of live rows", 0, min(num_rows, left))
            live = np.frombuffer(file.read(8 * num_live), dtype="<i8").astype(np.int64)
            if len(live) != num_live or not (np.diff(live, prepend=first - 1, append=last + 1) > 0).all():
                raise ValueError(f"{path} is torn: rows of the segment from {first} to {last} are not among them")
            segments.append(Segment(first, last, num_rows, num_bytes, NumberSet(live)))
            after = last + 1
    return segments


def _read_content(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.is_file():
        raise ValueError(f"{path} is missing. Load a checkpoint that was written to its end, of rows on disk.")
    try:
        content = load_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is torn ({error}). Load an earlier checkpoint.") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{path} is not of format {_FORMAT}. Load a checkpoint of this version.")
    return content


def _check_size(path: Path, size: Any) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing. Load an earlier checkpoint.")
    if path.stat().st_size != size:
        found = path.stat().st_size
        raise ValueError(f"{path} is torn: it has {found} bytes instead of {size}. Load an earlier checkpoint.")
