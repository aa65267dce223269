import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pytest

from mixer.tools.recipe.data import Format, Text, formatted
from mixer.tools.recipe.data.formatting import fingerprint_of
from tests.mixer.tools.recipe.small_tokenizers import CHATML, MARKED, byte_level

ROOT = Path(__file__).parents[4]


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


@pytest.mark.full
def test_a_second_start_and_another_process_make_nothing_anew(file: Path, tmp_path: Path, cache: Path) -> None:
    log = tmp_path / "log"
    first = make(file, log)
    assert log.read_text() == "5\n"
    assert make(file, log, called_before=True).to_list() == first.to_list()
    code = (
        "import sys; from pathlib import Path; from tests.mixer.tools.recipe.test_caching import make; "
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
        formatted(datasets.Dataset.from_dict({"text": ["ab", "cd"]}), Counted(str(tmp_path / "log")), byte_level())
    assert (tmp_path / "log").read_text() == "2\n"


class Newer(Text):
    version = Text.version + 1


def test_whatever_samples_follow_from_is_in_the_fingerprint() -> None:
    rows, others = (datasets.Dataset.from_dict({"text": [text]}) for text in "ab")
    used, larger, splitting = byte_level(), byte_level(), byte_level()
    used(["some text"], truncation=True, max_length=3, padding=True)
    larger.add_tokens(["row"])
    splitting.split_special_tokens = True
    same = fingerprint_of(rows, Text(), byte_level(), "causal-lm")
    for tokenizer in (used, byte_level(chat_template=CHATML)):
        assert fingerprint_of(rows, Text(), tokenizer, "causal-lm") == same
    tokenizers = [byte_level(**{name: value}) for name, value in (("chat_template", MARKED), ("eos_token", "<pad>"))]
    tokenizers += [byte_level(model_max_length=7), larger, splitting]
    different = [
        fingerprint_of(others, Text(), byte_level(), "causal-lm"),
        fingerprint_of(rows, Text(max_length=8), byte_level(), "causal-lm"),
        fingerprint_of(rows, Newer(), byte_level(), "causal-lm"),
        fingerprint_of(rows, Text(), byte_level(), "masked-lm"),
        *[fingerprint_of(rows, Text(), tokenizer, "causal-lm") for tokenizer in tokenizers],
    ]
    assert len({same, *different}) == len(different) + 1
