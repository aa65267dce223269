"""Chats of what Python carries: answers are what the system itself gives, and splits share no file."""

import ast
import errno
import os
import textwrap
import unicodedata
from typing import Any

import pytest

from tasks import chats
from tests.refusals import refused


def _turns(rows: Any) -> list[tuple[str, str]]:
    return [tuple(turn["content"] for turn in row["messages"]) for row in rows]


def test_names_and_codes_are_those_of_the_system() -> None:
    for question, name in _turns(chats.characters(200, 20)["validation"]):
        assert question == f"Which character is {unicodedata.lookup(name)}?"
    for question, meaning in _turns(chats.error_codes()["train"]):
        assert os.strerror(getattr(errno, question.split()[2])) == meaning


def test_code_and_examples_hold_no_answer() -> None:
    for question, sentence in _turns(chats.docstrings(100, 10)["train"]):
        head, _, code = question.partition("\n")
        assert head == "What does this function do?"
        (function,) = ast.parse(textwrap.dedent(code)).body
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function) is None
        assert 25 <= len(sentence) <= 120
    for question, result in _turns(chats.examples(100, 10)["train"]):
        assert question.splitlines()[0] == "What does Python print?"
        assert 0 < len(result) <= 60


@pytest.mark.parametrize("source", [chats.characters, chats.error_codes, chats.manual, chats.examples])
def test_splits_share_no_row_and_are_the_same_again(source: Any) -> None:
    first, again = source(60, 15), source(60, 15)
    rows = {split: [str(row) for row in first[split]] for split in first}
    assert {split: len(own) for split, own in rows.items()} == {"train": 60, "validation": 15}
    assert not set(rows["train"]) & set(rows["validation"])
    assert rows == {split: [str(row) for row in again[split]] for split in again}


def test_more_rows_than_there_are_are_refused() -> None:
    with refused("num_samples", found=10**6):
        chats.error_codes(10**6)
    with refused("num_validation_samples", found=10**6):
        chats.error_codes(10, 10**6)
