"""Chats of files of well-known data sets, written here in their form."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks import chats_of_files
from tests.refusals import refused


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
