import datasets
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.loading.distinct import DistinctBatches, apart
from mixer.mixture.stream import Stream
from tests.refusals import refused

ROWS = [{"question": f"q{k}", "answer": f"a{k % 4}", "id": k} for k in range(12)]


def stream(rows=ROWS, **fields) -> Stream:
    return Stream("qa", datasets.Dataset.from_list(rows), **fields)


@given(
    values=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=3), min_size=1, max_size=60),
    size=st.integers(1, 8),
)
def test_every_row_comes_once_and_no_value_twice_in_a_batch(values, size) -> None:
    order = np.random.default_rng(0).permutation(len(values))
    batches = apart(order, values, size)
    assert sorted(row for batch in batches for row in batch) == list(range(len(values)))
    for batch in batches:
        assert 1 <= len(batch) <= size
        in_batch = [value for row in batch for value in set(values[row])]
        assert len(set(in_batch)) == len(in_batch)


@given(size=st.integers(1, 9))
def test_without_duplicates_the_order_is_cut_into_full_batches(size) -> None:
    order = np.random.default_rng(1).permutation(20)
    assert apart(order, [[k] for k in range(20)], size) == [order[k : k + size].tolist() for k in range(0, 20, size)]


@pytest.mark.parametrize(
    ("columns", "most"), [(["answer"], 4), (["question", "answer"], 4), (["question"], 6), ("row", 6)]
)
def test_rows_that_agree_in_a_column_are_in_different_batches(columns, most) -> None:
    batches = DistinctBatches(stream(distinct_by=columns))(6, 0, 7)
    assert max(map(len, batches)) == most


def test_a_value_counts_in_whichever_column_it_is() -> None:
    rows = [{"question": "x", "answer": "y"}, {"question": "y", "answer": "z"}, {"question": "v", "answer": "w"}]
    batches = DistinctBatches(stream(rows, distinct_by=["question", "answer"]))(3, 0, 0)
    assert not any({0, 1} <= set(batch) for batch in batches)


def test_rows_of_lists_and_of_data_sets_are_compared_alike() -> None:
    own, listed = stream(distinct_by=["answer"]), Stream("qa", ROWS, distinct_by=["answer"])
    assert DistinctBatches(own)(6, 0, 7) == DistinctBatches(listed)(6, 0, 7)


def test_passes_differ() -> None:
    make = DistinctBatches(stream(distinct_by=["question"]))
    assert make(6, 0, 7) != make(6, 1, 7)


def test_a_column_that_is_missing_is_named() -> None:
    with refused("distinct_by", stream="qa"):
        DistinctBatches(stream(distinct_by=["reply"]))
