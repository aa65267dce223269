import numpy as np
import pytest
import torch

from tasks.text_domains import cpp_headers, english_docstrings, python_source

SOURCES = [python_source, cpp_headers, english_docstrings]
TELLING = {"python_source": b"import ", "cpp_headers": b"#include", "english_docstrings": b" the "}


@pytest.mark.parametrize("source", SOURCES)
def test_blocks_hold_text_of_the_domain(source: object) -> None:
    splits = source(num_samples=300, num_validation_samples=40, block_length=64)
    assert {name: len(data) for name, data in splits.items()} == {"train": 300, "validation": 40}
    sample = splits["train"][7]
    assert sample["input_ids"].shape == sample["labels"].shape == (64,)
    assert sample["input_ids"].dtype == torch.int64
    assert TELLING[source.__name__] in splits["train"].blocks.numpy().tobytes()


@pytest.mark.parametrize("source", SOURCES)
def test_reading_several_is_reading_each(source: object) -> None:
    data = source(num_samples=50, num_validation_samples=10, block_length=32)["train"]
    columns = data.read_columns(np.array([3, 0, 49]))
    for row, index in enumerate([3, 0, 49]):
        for name in ("input_ids", "labels"):
            assert torch.equal(columns[name][row], data[index][name])


@pytest.mark.parametrize("source", SOURCES)
def test_the_splits_are_the_same_each_time_and_share_no_block(source: object) -> None:
    one, two = (source(num_samples=100, num_validation_samples=50, block_length=64) for _ in range(2))
    for split in ("train", "validation"):
        assert torch.equal(one[split].blocks, two[split].blocks)
    train = {bytes(row.tolist()) for row in one["train"].blocks}
    assert len(train & {bytes(row.tolist()) for row in one["validation"].blocks}) <= 1


def test_asking_for_too_much_says_how_much_there_is() -> None:
    with pytest.raises(ValueError, match=r"Python source: this machine holds .* bytes for train, but"):
        python_source(num_samples=10_000_000)
