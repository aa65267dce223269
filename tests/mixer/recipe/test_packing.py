from itertools import chain
from unittest import mock

import datasets
from hypothesis import given, settings
from hypothesis import strategies as st

from mixer.recipe.data import Text, formatted
from mixer.recipe.data.formats.text import cut_into_blocks
from tests.mixer.recipe.small_tokenizers import byte_level

TOKENIZER = byte_level()
DOCUMENTS = st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=12)


@given(DOCUMENTS, st.integers(1, 7))
def test_blocks_are_the_documents_cut_anew(documents: list[list[int]], length: int) -> None:
    blocks = cut_into_blocks(documents, length)
    assert list(chain.from_iterable(blocks)) == list(chain.from_iterable(documents))
    assert all(len(block) == length for block in blocks[:-1])
    assert all(0 < len(block) <= length for block in blocks[-1:])


@settings(max_examples=15)
@given(st.lists(st.text("abc", max_size=9), min_size=1, max_size=20).filter(any), st.integers(2, 8))
def test_streamed_and_stored_rows_give_the_same_blocks(texts: list[str], length: int) -> None:
    rows = datasets.Dataset.from_dict({"text": texts})
    with mock.patch("mixer.recipe.data.formatting.ROWS_AT_ONCE", 4):
        stored = formatted(rows, Text(max_length=length), TOKENIZER)["input_ids"]
        streamed = formatted(rows.to_iterable_dataset(), Text(max_length=length), TOKENIZER)
        assert [sample["input_ids"] for sample in streamed] == list(stored)
    told = "".join(TOKENIZER.decode(block) for block in stored)
    # One end of text that would be a block by itself is left out, at the end of each four rows.
    assert told.replace("<|endoftext|>", "") == "".join(texts)


def test_a_stream_goes_on_from_its_state() -> None:
    rows = datasets.Dataset.from_dict({"text": [f"row {number}" for number in range(40)]})
    with mock.patch("mixer.recipe.data.formatting.ROWS_AT_ONCE", 8):
        stream = formatted(rows.to_iterable_dataset(), Text(max_length=16), TOKENIZER)
        whole = list(stream)
        begun = iter(stream)
        first = [next(begun) for _ in range(7)]
        state = stream.state_dict()
        again = formatted(rows.to_iterable_dataset(), Text(max_length=16), TOKENIZER)
        again.load_state_dict(state)
        assert first + list(again) == whole
