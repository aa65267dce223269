"""The manifest of rows on disk in a checkpoint."""

import json
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
    (next_number, first_pending, _), segments, pending = read_manifest(saved)
    assert [(one.first, one.last, len(one.live)) for one in segments] == [(0, 7, 6), (8, 15, 8)]
    assert (first_pending, next_number) == (16, 21)
    assert list(pending) == [16, 17, 18, 19, 20]


def test_a_digit_that_has_changed_is_refused(saved: Path) -> None:
    path = saved / "rows.json"
    path.write_text(path.read_text().replace('"next_number": 21', '"next_number": 22'))
    with pytest.raises(ValueError, match=r"rows\.json is damaged"):
        read_manifest(saved)


@pytest.mark.parametrize("name", ["next_number", "first_pending", "pending_bytes", "segments", "files"])
def test_what_is_lacking_is_damage(saved: Path, name: str) -> None:
    content = content_of(saved)
    del content[name], content["crc32"]
    (saved / "rows.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"rows\.json is damaged"):
        read_manifest(saved)
