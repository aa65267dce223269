"""Samples are made once: by whichever process comes first, of the same rows, settings, tokenizer and code."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pytest

from mixer.recipe.data import Format, Text, formatted
from mixer.recipe.data.formatting import fingerprint_of, tokenizer_content
from tests.mixer.recipe.small_tokenizers import CHATML, MARKED, byte_level

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Counted(Format):
    """Writes a line each time that it makes samples."""

    tasks = ("causal-lm",)

    log: str
    times: int = 1

    @property
    def columns(self) -> Sequence[str]:
        return ("text",)

    def encode(self, rows: Sequence[dict[str, Any]], tokenizer: Any, task: str) -> list[dict[str, Any]]:
        with Path(self.log).open("a") as log:
            log.write(f"{len(rows)}\n")
        tokens = [tokenizer(row["text"] * self.times)["input_ids"] for row in rows]
        return [{"input_ids": own, "labels": own} for own in tokens]


def make(file: Path, log: Path, called_before: bool = False, times: int = 1) -> Any:
    rows = datasets.load_dataset("json", data_files=str(file), split="train")
    tokenizer = byte_level()
    if called_before:  # which leaves its mark in the tokenizer
        tokenizer(["some text"], truncation=True, max_length=3, padding="max_length")
    return formatted(rows, Counted(str(log), times), tokenizer)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"text": "row {number}"}}\n' for number in range(5)))
    return path


def test_a_second_start_and_another_process_make_nothing_anew(file: Path, tmp_path: Path, cache: Path) -> None:
    log = tmp_path / "log"
    first = make(file, log)
    assert log.read_text() == "5\n"
    assert make(file, log, called_before=True).to_list() == first.to_list()
    code = (
        "import sys; from pathlib import Path; from tests.mixer.recipe.test_caching import make; "
        "assert len(make(Path(sys.argv[1]), Path(sys.argv[2]))) == 5"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(cache), "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code, str(file), str(log)], env=environment, check=True)
    assert log.read_text() == "5\n"
    make(file, log, times=2)
    file.write_text('{"text": "other"}\n')
    make(file, log)
    assert log.read_text() == "5\n5\n1\n"


def test_rows_in_memory_are_found_again_too(tmp_path: Path) -> None:
    for _ in range(2):
        rows = datasets.Dataset.from_dict({"text": ["ab", "cd"]})
        formatted(rows, Counted(str(tmp_path / "log")), byte_level())
    assert (tmp_path / "log").read_text() == "2\n"


class Newer(Text):
    version = Text.version + 1


def test_whatever_samples_follow_from_is_in_the_fingerprint() -> None:
    rows, others = (datasets.Dataset.from_dict({"text": [text]}) for text in "ab")
    tokenizer, used = byte_level(), byte_level()
    used(["some text"], truncation=True, max_length=3, padding=True)
    same = fingerprint_of(rows, Text(), tokenizer, "causal-lm")
    assert fingerprint_of(rows, Text(), used, "causal-lm") == same
    larger = byte_level()
    larger.add_tokens(["row"])
    different = [
        fingerprint_of(others, Text(), tokenizer, "causal-lm"),
        fingerprint_of(rows, Text(max_length=8), tokenizer, "causal-lm"),
        fingerprint_of(rows, Newer(), tokenizer, "causal-lm"),
        fingerprint_of(rows, Text(), tokenizer, "masked-lm"),
        fingerprint_of(rows, Text(), byte_level(chat_template=MARKED), "causal-lm"),
        fingerprint_of(rows, Text(), byte_level(eos_token="<pad>"), "causal-lm"),
        fingerprint_of(rows, Text(), larger, "causal-lm"),
        fingerprint_of(rows, Text(), byte_level(model_max_length=7), "causal-lm"),
    ]
    assert len({same, *different}) == len(different) + 1
    assert fingerprint_of(rows, Text(), byte_level(chat_template=CHATML), "causal-lm") == same


def test_what_a_tokenizer_splits_is_part_of_what_it_is() -> None:
    plain, splitting = byte_level(), byte_level()
    splitting.split_special_tokens = True
    assert tokenizer_content(plain) == tokenizer_content(byte_level())
    assert tokenizer_content(plain) != tokenizer_content(splitting)
