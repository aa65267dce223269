"""The parts of a look at data: reading, lengths, what is learned, what is the same."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings, strategies as st

from mixer.loading.row_digest import digest
from mixer.mixture.stream import Stream
from mixer.tools.analysis.inspect import measures
from mixer.tools.analysis.inspect.duplicates import Part, find_overlaps
from mixer.tools.analysis.inspect.examples import Decoder
from mixer.tools.analysis.inspect.inspect_view import marked
from mixer.tools.analysis.inspect.measures import (
    Limits,
    Measures,
    Truncation,
    num_learned,
    parsed_of,
    truncation_of,
)
from mixer.tools.analysis.inspect.sample_reader import SampleReading
from mixer.tools.recipe.data.formats import Chat, Dialogue, Prompt, Text
from mixer.tools.recipe.streams import BuiltStream
from tests.mixer.tools.analysis.inspect.sources import Breaking, Streamed, plain
from tests.mixer.tools.recipe.small_tokenizers import byte_level

LIMITS = Limits("causal-lm", vocabulary=64)


def test_samples_are_drawn_by_the_seed_without_repetition_and_in_order() -> None:
    def drawn_of(size: int, most: int, seed: int) -> list[int]:
        return [index for index, _ in SampleReading(range(size), most, seed)]

    drawn = drawn_of(1000, 100, seed=3)
    assert drawn == sorted(set(drawn)) == drawn_of(1000, 100, seed=3)
    assert len(drawn) == 100
    assert drawn != drawn_of(1000, 100, seed=4)
    assert drawn_of(10**9, 5, seed=0)[-1] < 10**9
    assert drawn_of(3, 5, seed=0) == [0, 1, 2]
    # Of rows that come in their own order the first are read.
    for breaks_at, most, expected in (
        (-1, 10, (7, 7, True, 0)),
        (-1, 5, (5, None, False, 0)),
        (4, 10, (4, None, False, 1)),
    ):
        reading = SampleReading(Streamed(7, breaks_at), most)
        assert (len(list(reading)), reading.size, reading.is_whole, reading.broken.number) == expected


def test_reading_leaves_random_generators_as_they_are() -> None:
    class Drawing(Breaking):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": [random.randrange(64) for _ in range(8)]}

    random.seed(5)
    expected = random.Random(5).random()
    first, second = (Measures(Drawing([]), 100, 0, LIMITS).digests for _ in range(2))
    assert random.random() == expected
    assert (first == second).all()


def test_different_content_is_different_and_the_kind_of_container_makes_no_difference() -> None:
    sames: list[list[Any]] = [
        [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3], np.int32), torch.tensor([1, 2, 3])],
        [[0.5, 2.0], np.array([0.5, 2.0], np.float32), torch.tensor([0.5, 2.0], dtype=torch.bfloat16)],
        [[["a", "b"], {"x": 1, "y": [2]}], (("a", "b"), {"y": np.array([2]), "x": np.int64(1)})],
    ]
    assert [len({digest(one) for one in same}) for same in sames] == [1, 1, 1]
    contents: list[Any] = [
        *(1, 1.5, True, "1", b"1", None, [1], [[1]], [1, 2], [2, 1], ["1"], ["a", "b"], ["ab"], [["a"], "b"]),
        *({"a": 1}, {"b": 1}, {"a": 1, "b": 2}, [[1, 2], [3]], [[1], [2, 3]], "\ud800", np.zeros((2, 3)), np.zeros(6)),
    ]
    assert len({digest(content) for content in contents}) == len(contents)


@pytest.mark.parametrize(
    ("labels", "task", "learned"),
    [
        ([1, 2, 3], "causal-lm", 2),  # the first is told by none before it
        ([-100, -100, 3], "causal-lm", 1),
        ([1, -100, -100], "causal-lm", 0),
        (None, "causal-lm", 2),
        (None, "masked-lm", 3),
        ([4, 5], "seq2seq-lm", 2),
        ([-100, 0, 1], "token-classification", 2),
        (4, "sequence-classification", 1),
        (-100, "sequence-classification", 0),
        ([0.0, 1.0], "sequence-classification", 1),
        (torch.tensor(2), "encoder", 1),
        (None, "encoder", -1),
    ],
)
def test_what_is_learned_is_counted(labels: Any, task: str, learned: int) -> None:
    assert num_learned(measures.tokens_of({"input_ids": [1, 2, 3]}), labels, task) == learned
    assert num_learned(measures.tokens_of({}), None, "causal-lm") == -1


parts_of_numbers = st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=4)


@settings(max_examples=25)
@given(parts_of_numbers, st.integers(0, 3))
def test_overlaps_are_those_of_counting_one_by_one(contents: list[list[int]], num_held: int) -> None:
    parts = [
        Part(str(number), number < num_held, "samples", np.array(own, np.uint64), True)
        for number, own in enumerate(contents)
    ]
    expected = {}
    for row, column in itertools.product(range(len(contents)), range(num_held, len(contents))):
        own, other = contents[row], contents[column]
        number = len(own) - len(set(own)) if row == column else sum(x in other for x in own)
        if number:
            expected[str(row), row < num_held, str(column)] = number
    found = {(one.stream, one.is_validation, one.other): one.num_samples for one in find_overlaps(parts)}
    assert found == expected


def test_what_is_learned_is_marked_where_it_stands() -> None:
    tokenizer = byte_level()
    tokens = tokenizer("ask: yes")["input_ids"]
    labels = [-100] * 5 + tokens[5:]
    example = Decoder(tokenizer, "causal-lm").decode({"input_ids": tokens, "labels": labels})
    assert example == "ask: ⟦yes⟧"
    (span,) = marked(example).spans
    assert (marked(example).plain[span.start : span.end], span.style) == ("⟦yes⟧", "bold green")
    sample = {"input_ids": tokenizer("one")["input_ids"], "labels": [*tokenizer("eins")["input_ids"], -100]}
    assert Decoder(tokenizer, "seq2seq-lm").decode(sample) == "one → ⟦eins⟧"
    sample["labels"] = 1
    assert Decoder(tokenizer, "encoder", ["no", "yes"]).decode(sample) == "one → ⟦1: yes⟧"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        # 3, 5 and 6 with their ends.
        (Text(max_length=5, pack=False), Truncation(5, 3, 1, 1 / 3, pytest.approx(1 / 14), 0, 1)),
        (Text(max_length=6, pack=False), Truncation(6, 3, 0, 0.0, 0.0)),
        (Text(max_length=5), None),  # what is packed is not cut off
        (Text(pack=False), None),
        (None, None),
    ],
)
def test_what_a_format_cuts_off_is_counted(chosen: Text | None, expected: Truncation | None) -> None:
    texts = Dataset.from_dict({"text": ["ab", "abcd", "abcde"]})
    built = BuiltStream(Stream("a", plain()), None, None, texts, None, chosen)
    assert truncation_of(built, byte_level(), "causal-lm", 100, 0) == expected


def test_answers_that_a_format_cuts_off_are_counted() -> None:
    # The tokens of questions, and of answers with their ends: 1 + 2, 1 + 4, 4 + 2, and nothing to learn.
    pairs = [("a", "b"), ("a", "bcd"), ("abcd", "e"), ("abcdef", "")]
    rows = Dataset.from_list([{"q": question, "a": answer} for question, answer in pairs])
    built = BuiltStream(Stream("a", plain()), None, None, rows, None, Prompt("{q}", "{a}", 4))
    found = truncation_of(built, byte_level(), "causal-lm", 100, 0)
    assert found is not None
    assert (found.num_cut, found.num_unlearned, found.num_learned_partly) == (2, 1, 1)


def test_the_fields_of_other_rows_make_no_row_longer() -> None:
    template = "{{ tools | tojson }}{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer = byte_level(chat_template=template)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    given = [[{"name": "a"}], [{"name": "b", "strict": True}]]  # Arrow gives both tools both fields
    longest = max(
        len(tokenizer.apply_chat_template(messages, tools=tools, return_dict=True)["input_ids"]) for tools in given
    )
    rows = Dataset.from_list([{"messages": messages, "tools": tools} for tools in given])
    built = BuiltStream(Stream("a", plain()), None, None, rows, None, Chat(max_length=longest, train_on="all"))
    assert truncation_of(built, tokenizer, "causal-lm", 100, 0) == Truncation(longest, 2, 0, 0.0, 0.0)


def test_rows_whose_calls_are_parsed_are_counted() -> None:
    calls = [{"name": "a", "arguments": arguments} for arguments in ("{}", '{"b": 1}')]
    talks = [[{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}] for call in calls]
    rows = Dataset.from_list([{"messages": [*talk]} for talk in (*talks, [{"role": "user", "content": "a"}] * 2)])
    tokenizer = byte_level(
        chat_template="{% for one in messages %}{{ one.content }}{{ (one.tool_calls or []) | tojson }}{% endfor %}"
    )
    for chosen in (Chat(train_on="all"), Dialogue(shape=["messages"], as_turns=True)):
        built = BuiltStream(Stream("a", plain()), None, None, rows, None, chosen)
        assert parsed_of(built, tokenizer, "causal-lm", 100, 0) == 2
    assert parsed_of(BuiltStream(Stream("a", plain()), None, None), tokenizer, "causal-lm", 100, 0) is None
