from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tasks.text_domains import cpp_headers, english_docstrings, python_source
from tests.refusals import refused

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
