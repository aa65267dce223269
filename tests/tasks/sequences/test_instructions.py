"""Tasks of prompts and answers, from folders in the form of published benchmarks."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tasks.generation import TEXT_SCORES
from tasks.sequences import ORDERS, TRACE_SCORES, instructions
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.refusals import refused

TOKENIZER = byte_level()


def write(file: Path, rows: Iterable[dict[str, Any]], lines: bool = False) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows) if lines else json.dumps(list(rows)))


def rows(name: str, count: int, prompt: str = "prompt", answer: str = "answer") -> list[dict[str, Any]]:
    return [{prompt: f"{name} {number}?", answer: f"{number}!"} for number in range(count)]


def texts(dataset: Any) -> list[str]:
    """The samples as text, what is learned behind a bar."""
    found = []
    for sample in dataset:
        start = sum(label == -100 for label in sample["labels"])
        parts = sample["input_ids"][:start], sample["input_ids"][start:]
        found.append("|".join(TOKENIZER.decode(part, skip_special_tokens=True) for part in parts))
    return found


def test_eight_tasks_of_trace_come_in_its_order(tmp_path: Path) -> None:
    for name in ORDERS["trace"]:
        for split, count in (("train", 5), ("eval", 2), ("test", 3)):
            write(tmp_path / name / f"{split}.json", rows(name, count))
    sequence = instructions(TOKENIZER, tmp_path, "trace")
    assert sequence.names == ORDERS["trace"]
    assert len(sequence) == 8
    assert (sequence.scenario, sequence[0].classes) == ("domain", None)
    assert texts(sequence["Py150"].evaluation) == ["Py150 0?|0!", "Py150 1?|1!", "Py150 2?|2!"]
    assert [len(task.train) for task in sequence] == [5] * 8
    assert len(instructions(TOKENIZER, tmp_path, "trace", evaluation_split="eval")[0].evaluation) == 2
    assert set(TRACE_SCORES) == set(ORDERS["trace"])
    assert set(TRACE_SCORES.values()) <= set(TEXT_SCORES)


@pytest.mark.parametrize("number", [1, 4])
def test_orders_of_o_lora_read_its_files(tmp_path: Path, number: int) -> None:
    kinds = {"agnews": "TC", "dbpedia": "TC", "yahoo": "TC", "amazon": "SC", "yelp": "SC", "SST-2": "SC", "IMDB": "SC"}
    order = ORDERS[f"o_lora_{number}"]
    for name in order:
        kind = kinds.get(name, name)
        for split, count in (("train", 3), ("dev", 1), ("test", 2)):
            write(tmp_path / kind / name / f"{split}.json", rows(name, count, "sentence", "label"))
    found = instructions(TOKENIZER, tmp_path, f"o_lora_{number}", prompt="{sentence}\nAnswer:", answer=" {label}")
    assert found.names == order
    assert len(order) == (4 if number < 4 else 15)
    assert texts(found["amazon"].evaluation) == ["amazon 0?\nAnswer:| 0!", "amazon 1?\nAnswer:| 1!"]


def test_a_file_a_task_is_held_out_from_and_rows_are_drawn_by_a_seed(tmp_path: Path) -> None:
    for name in ("b", "A_2"):
        write(tmp_path / f"{name}.jsonl", rows(name, 20), lines=True)
    sequence = instructions(TOKENIZER, tmp_path)
    assert sequence.names == ("A_2", "b")
    for task in sequence:
        train, evaluation = texts(task.train), texts(task.evaluation)
        assert sorted(train + evaluation) == sorted(f"{task.name} {number}?|{number}!" for number in range(20))
        assert len(evaluation) == 4
    few = [
        instructions(TOKENIZER, tmp_path, ["a2"], max_samples=6, max_evaluation_samples=2, seed=k) for k in (1, 1, 2)
    ]
    drawn = [texts(sequence[0].train) for sequence in few]
    assert [len(sequence[0].evaluation) for sequence in few] == [2, 2, 2]
    assert (len(set(drawn[0])), drawn[0] == drawn[1], drawn[0] == drawn[2]) == (6, True, False)


def test_a_missing_task_is_named_with_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "FOMC" / "train.json", rows("FOMC", 2))
    write(tmp_path / "C-STANCE" / "train.json", rows("C", 2))
    write(tmp_path / "C-STANCE" / "test.json", rows("C", 2))
    with pytest.raises(
        FileNotFoundError, match=r"lacks the tasks \['FOMC', .*'20Minuten'\]; it has \['C-STANCE'\]"
    ) as told:
        instructions(TOKENIZER, tmp_path, "trace")  # FOMC has no test.json
    assert str(tmp_path) in str(told.value)
    assert "the files train.json and test.json" in str(told.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        instructions(TOKENIZER, tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        instructions(TOKENIZER, tmp_path / "none")
    with refused("instructions: order"):
        instructions(TOKENIZER, tmp_path, ["a", "b", "a"])
    with refused("instructions: order"):
        instructions(TOKENIZER, tmp_path, ["C-STANCE", "c_stance"])
    with refused("order"):
        instructions(TOKENIZER, tmp_path, "tracy")
    with pytest.raises(ValueError, match="C-STANCE: train: Prompt reads the column 'question'"):
        instructions(TOKENIZER, tmp_path, ["C-STANCE"], prompt="{question}")


def test_columns_that_say_more_are_refused_unless_ignored(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / "a" / f"{split}.json", [{**row, "system": "be brief"} for row in rows("a", 2)])
        write(tmp_path / "b" / f"{split}.json", rows("a", 2))
    with pytest.raises(ValueError, match=r"instructions: a: train: .*'system'"):
        instructions(TOKENIZER, tmp_path)
    ignoring, plain = instructions(TOKENIZER, tmp_path, ignored_columns=["system"])
    assert texts(ignoring.train) == texts(plain.train)
