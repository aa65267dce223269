"""What a checkpoint notes of rows on disk, as anyone may have written it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.storage.disk_rows import read_manifest
from tests.replay.storage.test_disk_rows import filled


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two segments of 8 rows, of the first of which two are dropped, and 5 rows that wait."""
    rows = filled(tmp_path / "rows", 21)
    rows.drop(np.array([1, 2]))
    rows.save(tmp_path / "saved")
    return tmp_path / "saved"


def content_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "rows.json").read_text())
    return content


def test_it_is_as_was_written(saved: Path) -> None:
    manifest = read_manifest(saved)
    assert [(one.first, one.last, len(one.live)) for one in manifest.segments] == [(0, 7, 6), (8, 15, 8)]
    assert (manifest.first_pending, manifest.next_number) == (16, 21)
    assert list(manifest.pending) == [16, 17, 18, 19, 20]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("next_number",), "21", "next_number must be a whole number"),
        (("next_number",), -1, "next_number must be a whole number"),
        (("next_number",), 20, "its numbers of rows do not fit"),
        (("next_number",), 15, "its numbers of rows do not fit"),
        (("first_pending",), 1.5, "first_pending must be a whole number"),
        (("first_pending",), 17, "its numbers of rows do not fit"),
        (("first_pending",), 15, "its last row must be a whole number from 8 to 14"),
        (("pending_bytes",), None, "pending_bytes must be a whole number"),
        (("segments",), 3, "is damaged"),
        (("segments",), [[0, 7, 6]], "not enough values"),
        (("segments", 0, 0), -1, "the first row of a segment must be a whole number from 0"),
        (("segments", 0, 0), "0", "the first row of a segment must be a whole number from 0"),
        (("segments", 1, 0), 7, "the first row of a segment must be a whole number from 8"),
        (("segments", 1, 1), 16, "its last row must be a whole number from 8 to 15"),
        (("segments", 1, 1), 7, "its last row must be a whole number from 8 to 15"),
        (("segments", 0, 2), 9, "its number of rows must be a whole number from 1 to 8"),
        (("segments", 0, 2), 0, "its number of rows must be a whole number from 1 to 8"),
        (("segments", 0, 3), -1, "its number of bytes must be a whole number"),
        (("segments", 0, 4), 7, "rows of the segment from 0 to 7 are not among them"),
        (("segments", 0, 4), 10**12, "its number of live rows must be a whole number"),
        (("segments", 1, 4), -1, "its number of live rows must be a whole number"),
        (("files",), 3, "is damaged"),
    ],
)
def test_numbers_that_cannot_be_are_refused(saved: Path, place: tuple[Any, ...], value: Any, said: str) -> None:
    content = content_of(saved)
    inner: Any = content
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    (saved / "rows.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=re.escape(str(saved))) as info:
        read_manifest(saved)
    assert type(info.value) is ValueError
    assert said in str(info.value)


@pytest.mark.parametrize("name", ["next_number", "first_pending", "pending_bytes", "segments", "files"])
def test_what_is_lacking_is_damage(saved: Path, name: str) -> None:
    content = content_of(saved)
    del content[name]
    (saved / "rows.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"rows\.json is damaged"):
        read_manifest(saved)


@pytest.mark.parametrize("live", [[0, 0, 3, 4, 5, 6], [3, 0, 4, 5, 6, 7], [-1, 0, 3, 4, 5, 6], [0, 3, 4, 5, 6, 8]])
def test_rows_that_live_are_of_their_segment_and_in_order(saved: Path, live: list[int]) -> None:
    (path,) = (path for path in saved.iterdir() if "live" in path.name)
    path.write_bytes(np.array([*live, *range(8, 16)], dtype="<i8").tobytes())
    with pytest.raises(ValueError, match=r"is torn: rows of the segment from 0 to 7 are not among them"):
        read_manifest(saved)
