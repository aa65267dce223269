"""Digests of files: which files have one, and what is said of those that changed."""

import os
from pathlib import Path

from mixer.utils.files import digests_of, find_damaged


def test_changed_files_are_found_missing_large_and_linked_ones_are_not_spoken_of(tmp_path: Path) -> None:
    for name in ("a", "b", "linked"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    for name, size in (("large", 64 * 2**20 + 1), ("largest", 64 * 2**20)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    os.link(tmp_path / "linked", tmp_path / "second")
    digests = digests_of(tmp_path, ["a", "b", "large", "largest", "linked"])
    assert set(digests) == {"a", "b", "largest"}
    assert find_damaged(tmp_path, digests) is None
    (tmp_path / "b").write_bytes(b"b" * 99 + b"c")
    assert find_damaged(tmp_path, digests) == "b"
    (tmp_path / "b").unlink()
    assert find_damaged(tmp_path, digests) is None
