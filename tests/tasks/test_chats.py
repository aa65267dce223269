"""Chats of what Python carries and of files of well-known data sets: answers are theirs, and splits share no file."""

import ast
import errno
import json
import os
import textwrap
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tasks import chats, chats_of_files
from tests.refusals import refused


def _turns(rows: Any) -> list[tuple[str, str]]:
    return [tuple(turn["content"] for turn in row["messages"]) for row in rows]


def test_names_and_codes_are_those_of_the_system() -> None:
    for question, name in _turns(chats.characters(200, 20)["validation"]):
        assert question == f"Which character is {unicodedata.lookup(name)}?"
    for question, meaning in _turns(chats.error_codes()["train"]):
        assert os.strerror(getattr(errno, question.split()[2])) == meaning


def test_code_and_examples_hold_no_answer() -> None:
    for question, sentence in _turns(chats.docstrings(40, 4)["train"]):
        head, _, code = question.partition("\n")
        assert head == "What does this function do?"
        (function,) = ast.parse(textwrap.dedent(code)).body
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function) is None
        assert 25 <= len(sentence) <= 120
    for question, result in _turns(chats.examples(40, 4)["train"]):
        assert question.splitlines()[0] == "What does Python print?"
        assert 0 < len(result) <= 60


@pytest.mark.parametrize("source", [chats.characters, chats.error_codes, chats.manual, chats.examples])
def test_splits_share_no_row_and_are_the_same_again(source: Any) -> None:
    first, again = source(20, 4), source(20, 4)
    rows = {split: [str(row) for row in first[split]] for split in first}
    assert {split: len(own) for split, own in rows.items()} == {"train": 20, "validation": 4}
    assert not set(rows["train"]) & set(rows["validation"])
    assert rows == {split: [str(row) for row in again[split]] for split in again}


def test_more_rows_than_there_are_are_refused() -> None:
    with refused("num_samples", found=10**6):
        chats.error_codes(10**6)
    with refused("num_validation_samples", found=10**6):
        chats.error_codes(10, 10**6)


def _pairs(rows: Any) -> list[tuple[str, str]]:
    return [(row["messages"][0]["content"].partition("\n")[2], row["messages"][1]["content"]) for row in rows]


def test_requests_of_one_domain_have_their_intents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [["i lost my card", "report_lost_card"], ["book a flight", "book_flight"], ["pay the bill", "pay_bill"]]
    (tmp_path / "data_full.json").write_text(json.dumps({"train": requests, "val": requests[:1]}))
    (tmp_path / "domains.json").write_text(json.dumps({"banking": ["report_lost_card", "pay_bill"], "travel": []}))
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path))
    found = chats_of_files.intents("$SOME_FOLDER")
    assert sorted(_pairs(found["train"])) == [("i lost my card", "report lost card"), ("pay the bill", "pay bill")]
    assert _pairs(found["validation"]) == [("i lost my card", "report lost card")]
    assert len(chats_of_files.intents("$SOME_FOLDER", num_samples=1)["train"]) == 1
    with refused("domain", found="work"):
        chats_of_files.intents("$SOME_FOLDER", "work")


def test_reviews_have_opinions(tmp_path: Path) -> None:
    (tmp_path / "stsa.binary.train").write_text("1 a joy\n0 a bore , at best\n")
    (tmp_path / "stsa.binary.dev").write_text("0 not good\n")
    found = chats_of_files.reviews(str(tmp_path))
    assert sorted(_pairs(found["train"])) == [("a bore , at best", "negative"), ("a joy", "positive")]
    assert _pairs(found["validation"]) == [("not good", "negative")]
