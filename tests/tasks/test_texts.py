"""Texts that packages carry: rows are parts of files, whose splits share no file."""

import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks import texts
from tasks.text_domains import cpp_headers, english_docstrings, python_source
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


TELLING = {python_source: b"import ", cpp_headers: b"#include", english_docstrings: b" the "}
read = cache(lambda source: source(300, 40, 64))


@pytest.mark.parametrize("source", TELLING)
def test_blocks_hold_text_of_the_domain(source: Any) -> None:
    splits = read(source)
    assert {name: len(data) for name, data in splits.items()} == {"train": 300, "validation": 40}
    sample = splits["train"][7]
    assert sample["input_ids"].shape == sample["labels"].shape == (64,)
    assert sample["input_ids"].dtype == torch.int64
    columns = splits["train"].read_columns(np.array([3, 0, 299]))
    for row, index in enumerate([3, 0, 299]):
        assert all(torch.equal(columns[name][row], splits["train"][index][name]) for name in columns)
    if source is cpp_headers:
        assert torch.equal(source(300, 40, 64)["train"].blocks, splits["train"].blocks)  # the same each time
    train, validation = (splits[name].blocks.numpy() for name in ("train", "validation"))
    assert TELLING[source] in train.tobytes()
    assert len({row.tobytes() for row in train} & {row.tobytes() for row in validation}) <= 1


def test_asking_for_too_much_says_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.text_domains.read_texts", lambda *_: [(5e-7, "x" * 999)])
    with refused("num_samples"):
        python_source(100, 2, 64)
