"""The parts of a look at data: reading, lengths, what is learned, what is the same."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from mixer.analysis.inspect.digests import digest
from mixer.analysis.inspect.distribution import distribution_of
from mixer.analysis.inspect.duplicates import Part, find_overlaps
from mixer.analysis.inspect.examples import Decoding, Piece, example_of
from mixer.analysis.inspect.measures import Limits
from mixer.analysis.inspect.measuring import measure
from mixer.analysis.inspect.printable import text_of
from mixer.analysis.inspect.reading import SampleReading, chosen_indices
from mixer.analysis.inspect.tokens import num_learned, tokens_of
from mixer.analysis.inspect.truncation import Truncation, truncation_of
from mixer.mixture.stream import Stream
from mixer.recipe.data.formats import Text
from mixer.recipe.streams import BuiltStream
from mixer.utils.text import printable
from tests.mixer.data.small_tokenizers import byte_level
from tests.mixer.inspecting.sources import Breaking, Pairs, Streamed, plain, rows

LIMITS = Limits("causal-lm", vocabulary=64)


def test_samples_are_drawn_by_the_seed_without_repetition_and_in_order() -> None:
    drawn = chosen_indices(1000, 100, seed=3)
    assert drawn == sorted(set(drawn)) == chosen_indices(1000, 100, seed=3)
    assert len(drawn) == 100
    assert drawn != chosen_indices(1000, 100, seed=4)
    assert chosen_indices(10**9, 5, seed=0)[-1] < 10**9


def test_a_sample_that_cannot_be_read_is_noted_and_the_others_are_read() -> None:
    reading = SampleReading(Breaking([4, 17]), most=100)
    assert [index for index, _ in reading] == [index for index in range(30) if index not in (4, 17)]
    assert (reading.num_broken, [one.index for one in reading.broken], reading.is_whole) == (2, [4, 17], True)
    assert "page 4" in reading.broken[0].error


@pytest.mark.parametrize(
    ("num_rows", "breaks_at", "most", "expected"),
    [(7, -1, 10, (7, 7, True, 0)), (7, -1, 5, (5, None, False, 0)), (7, 4, 10, (4, None, False, 1))],
)
def test_of_rows_that_come_in_their_own_order_the_first_are_read(
    num_rows: int, breaks_at: int, most: int, expected: tuple[Any, ...]
) -> None:
    reading = SampleReading(Streamed(num_rows, breaks_at), most)
    num_read = len(list(reading))
    assert (num_read, reading.size, reading.is_whole, reading.num_broken) == expected


def test_reading_leaves_random_generators_as_they_are() -> None:
    class Drawing(Breaking):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": [random.randrange(64) for _ in range(8)]}

    random.seed(5)
    expected = random.Random(5).random()
    first, second = (measure(Drawing([]), 100, 0, LIMITS).digests for _ in range(2))
    assert random.random() == expected
    assert (first == second).all()


@pytest.mark.parametrize(
    "same",
    [
        [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3], np.int32), torch.tensor([1, 2, 3])],
        [[0.5, 2.0], np.array([0.5, 2.0], np.float32), torch.tensor([0.5, 2.0], dtype=torch.bfloat16)],
        [[["a", "b"], {"x": 1, "y": [2]}], (("a", "b"), {"y": np.array([2]), "x": np.int64(1)})],
    ],
)
def test_the_kind_of_container_makes_no_difference(same: list[Any]) -> None:
    assert len({digest(one) for one in same}) == 1


def test_different_content_is_different() -> None:
    contents: list[Any] = [
        *(1, 1.5, True, "1", b"1", None, [1], [[1]], [1, 2], [2, 1], ["1"], ["a", "b"], ["ab"], [["a"], "b"]),
        *({"a": 1}, {"b": 1}, {"a": 1, "b": 2}, [[1, 2], [3]], [[1], [2, 3]], "\ud800", np.zeros((2, 3)), np.zeros(6)),
    ]
    same_as_one = [1, True]
    assert len({digest(content) for content in contents}) == len(contents) - len(same_as_one) + 1


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60))
def test_a_histogram_holds_every_number_once(numbers: list[int]) -> None:
    described = distribution_of(np.array(numbers))
    assert described is not None
    assert sum(one.count for one in described.bins) == len(numbers)
    assert len(described.bins) <= 10
    for one in described.bins:
        assert one.count == sum(one.least <= number <= one.most for number in numbers)
    assert (described.least, described.most) == (min(numbers), max(numbers))
    assert set(described.quantiles.values()) <= set(numbers)
    assert sum(number <= described.quantiles[0.5] for number in numbers) >= len(numbers) / 2


@pytest.mark.parametrize(
    ("tokens", "labels", "task", "learned"),
    [
        ([1, 2, 3], [1, 2, 3], "causal-lm", 2),  # the first is told by none before it
        ([1, 2, 3], [-100, -100, 3], "causal-lm", 1),
        ([1, 2, 3], [1, -100, -100], "causal-lm", 0),
        ([1, 2, 3], None, "causal-lm", 2),
        ([1], None, "causal-lm", 0),
        ([1, 2, 3], None, "masked-lm", 3),
        ([1, 2, 3], [4, 5], "seq2seq-lm", 2),
        ([1, 2, 3], [-100, 0, 1], "token-classification", 2),
        ([1, 2, 3], 4, "sequence-classification", 1),
        ([1, 2, 3], -100, "sequence-classification", 0),
        ([1, 2, 3], 0.5, "sequence-classification", 1),
        ([1, 2, 3], [0.0, 1.0], "sequence-classification", 1),
        ([1, 2, 3], torch.tensor(2), "encoder", 1),
        ([1, 2, 3], None, "encoder", -1),
        (None, None, "causal-lm", -1),
    ],
)
def test_what_is_learned_is_counted(tokens: Any, labels: Any, task: str, learned: int) -> None:
    sample = {} if tokens is None else {"input_ids": tokens}
    assert num_learned(tokens_of(sample), labels, task) == learned


parts_of_numbers = st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=4)


@given(parts_of_numbers, st.integers(0, 3))
def test_overlaps_are_those_of_counting_one_by_one(contents: list[list[int]], num_held: int) -> None:
    parts = [
        Part(str(number), number < num_held, "samples", np.array(own, np.uint64), True)
        for number, own in enumerate(contents)
    ]
    expected = {}
    for row, own in enumerate(contents):
        for column, other in enumerate(contents):
            if column < num_held:
                continue
            number = (
                sum(times - 1 for times in Counter(own).values()) if row == column else sum(x in other for x in own)
            )
            if number:
                expected[str(row), row < num_held, str(column)] = number
    found = {(one.stream, one.is_validation, one.other): one.num_samples for one in find_overlaps(parts)}
    assert found == expected


def test_only_like_is_compared_with_like() -> None:
    same = np.array([1, 2], np.uint64)
    parts = [Part("a", False, "samples", same, True), Part("b", False, "rows", same, True)]
    assert find_overlaps(parts) == []


def test_many_overlaps_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = np.repeat(np.arange(100, dtype=np.uint64), 3)
    parts = [Part("a", False, "samples", contents, True), Part("b", False, "samples", contents[:150], False)]
    whole = find_overlaps(parts)
    monkeypatch.setattr("mixer.analysis.inspect.duplicates._AT_ONCE", 7)
    assert find_overlaps(parts) == whole
    numbers = [(one.stream, one.other, one.num_samples, one.is_whole) for one in whole]
    assert numbers == [("a", "a", 200, True), ("a", "b", 150, False), ("b", "a", 150, False), ("b", "b", 100, False)]


def test_numbers_as_arrays_are_measured_as_lists_are() -> None:
    """A `datasets.Dataset` is read by arrays, other data sets are not."""
    one, other = measure(plain(), 100, 0, LIMITS), measure(rows(40, seed=1), 100, 0, LIMITS)
    assert (one.digests == other.digests).all()
    assert (one.learned == other.learned).all()
    assert one.columns == other.columns == ["input_ids", "labels"]


def test_samples_that_are_no_mappings_are_compared_and_shown_as_they_are() -> None:
    measures = measure(Pairs(), 100, 0, LIMITS)
    assert len(set(measures.digests.tolist())) == 3
    assert (measures.columns, measures.unit, measures.num_read) == (None, "", 6)
    assert example_of(0, Pairs()[0], Decoding(None, "causal-lm")).pieces == [Piece("(tensor([0, 0]), 1)", False)]


def test_what_is_learned_is_marked_where_it_stands() -> None:
    tokenizer = byte_level()
    tokens = tokenizer("ask: yes")["input_ids"]
    labels = [-100] * 5 + tokens[5:]
    example = example_of(3, {"input_ids": tokens, "labels": labels}, Decoding(tokenizer, "causal-lm"))
    assert example.pieces == [Piece("ask: ", False), Piece("yes", True)]
    assert text_of(example).plain == "ask: ⟦yes⟧"


def test_what_is_written_beside_is_shown_beside() -> None:
    tokenizer = byte_level()
    sample = {"input_ids": tokenizer("one")["input_ids"], "labels": [*tokenizer("eins")["input_ids"], -100]}
    assert text_of(example_of(0, sample, Decoding(tokenizer, "seq2seq-lm"))).plain == "one → ⟦eins⟧"
    sample["labels"] = 1
    decoding = Decoding(tokenizer, "encoder", ["no", "yes"])
    assert text_of(example_of(0, sample, decoding)).plain == "one → ⟦1: yes⟧"


def test_nothing_of_a_text_moves_or_colours_the_terminal() -> None:
    hostile = "[red]a[/red]\n\x1b[2J\x07\u202eright\u200f\ttab\r\x00\ud800"
    shown = printable(hostile)
    assert shown == "[red]a[/red]\\n\\x1b[2J\\x07\\u202eright\\u200f\\ttab\\r\\x00\\ud800"
    assert shown.isprintable()
    assert printable("שלום and é and 漢") == "שלום and é and 漢"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Text(max_length=5, pack=False), Truncation(5, 3, 1, pytest.approx(1 / 14))),  # 3, 5 and 6 with their ends
        (Text(max_length=6, pack=False), Truncation(6, 3, 0, 0.0)),
        (Text(max_length=5), None),  # what is packed is not cut off
        (Text(pack=False), None),
        (None, None),
    ],
)
def test_what_a_format_cuts_off_is_counted(chosen: Text | None, expected: Truncation | None) -> None:
    texts = Dataset.from_dict({"text": ["ab", "abcd", "abcde"]})
    built = BuiltStream(Stream("a", plain()), None, None, texts, None, chosen)
    assert truncation_of(built, byte_level(), "causal-lm", 100, 0) == expected
