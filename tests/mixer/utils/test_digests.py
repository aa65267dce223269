"""Digests of files: which files have one, and what is said of those that changed."""

import os
from pathlib import Path

from mixer.utils.files import digests_of, find_damaged


def test_a_changed_file_is_found_and_a_missing_one_is_not_spoken_of(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    digests = digests_of(tmp_path, ["a", "b"])
    assert find_damaged(tmp_path, digests) is None
    (tmp_path / "b").write_bytes(b"b" * 99 + b"c")
    assert find_damaged(tmp_path, digests) == "b"
    (tmp_path / "b").unlink()
    assert find_damaged(tmp_path, digests) is None


def test_large_files_and_those_with_a_second_name_have_none(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"a")
    for name, size in (("large", 64 * 2**20 + 1), ("largest", 64 * 2**20)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    (tmp_path / "linked").write_bytes(b"a")
    os.link(tmp_path / "linked", tmp_path / "second")
    assert set(digests_of(tmp_path, ["small", "large", "largest", "linked"])) == {"small", "largest"}
