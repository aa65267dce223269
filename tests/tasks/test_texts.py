"""Texts that packages carry: rows are parts of files, whose splits share no file."""

import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks import texts
from tests.refusals import refused


@pytest.mark.parametrize(
    ("source", "root", "pattern"),
    [
        (texts.python_code, Path(sysconfig.get_paths()["stdlib"]), "*.py"),
        (texts.cpp_code, Path(str(torch.__file__)).parent / "include", "*.h"),
    ],
)
def test_rows_are_consecutive_parts_of_files(source: Any, root: Path, pattern: str) -> None:
    rows = source(12, 3)
    assert {split: len(own) for split, own in rows.items()} == {"train": 12, "validation": 3}
    found = [text for own in rows.values() for text in own["text"]]
    assert len(set(found)) == 15
    assert max(map(len, found)) < 2_000
    assert sum(map(len, found)) > 15 * 500
    files = [path.read_text(encoding="utf-8", errors="replace") for path in root.rglob(pattern) if path.is_file()]
    assert all(any(text in file for file in files) for text in found)
    assert rows["train"]["text"][:5] == source(5, 1)["train"]["text"]


def test_more_rows_than_there_are_are_refused() -> None:
    with refused("num_samples", found=10**6):
        texts.cpp_code(10**6, 1)
