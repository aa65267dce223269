"""Tasks of prompts and answers, and of pictures, from folders in the form of published benchmarks."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image

from tasks.generation import TEXT_SCORES
from tasks.sequences import ORDERS, TRACE_SCORES, instructions, standard
from tasks.sources import labels_of
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


def folder_of(path: Path, num_classes: int, counts: dict[str, int]) -> str:
    """Writes pictures of a colour for each class, so many for each split."""
    for split, count in counts.items():
        for number in range(num_classes):
            place = path / split / f"class-{number:03}"
            place.mkdir(parents=True)
            for shade in range(count):
                Image.new("RGB", (2, 2), (number, shade, 255)).save(place / f"{shade}.png")
    return str(path)


@pytest.mark.parametrize(
    ("name", "num_classes", "evaluated", "num_tasks"),
    [("seq-cifar10", 10, "test", 5), ("seq-cifar100", 100, "test", 10), ("seq-tiny-imagenet", 200, "valid", 10)],
)
def test_a_standard_name_is_its_number_of_tasks_of_new_classes(
    name: str, num_classes: int, evaluated: str, num_tasks: int, tmp_path: Path
) -> None:
    tasks = standard(name, folder_of(tmp_path, num_classes, {"train": 1, evaluated: 1}))
    each = num_classes // num_tasks
    assert tasks.scenario == "class"
    assert [task.classes for task in tasks] == [tuple(range(k * each, (k + 1) * each)) for k in range(num_tasks)]
    assert [len(task.evaluation) for task in tasks] == [each] * num_tasks
    row = tasks[1].evaluation[0]
    assert row["pixel_values"].shape[-1] == {"seq-tiny-imagenet": 64}.get(name, 32)
    expected = torch.tensor([row["labels"], 0, 255]) / 127.5 - 1  # the colour is that of the class
    torch.testing.assert_close(torch.as_tensor(row["pixel_values"])[:, 0, 0], expected)


def test_pictures_of_another_number_of_classes_are_refused(tmp_path: Path) -> None:
    path = folder_of(tmp_path, 2, {"train": 1, "test": 1})
    with refused("path"):
        standard("seq-cifar10", path)


def test_imagenet_r_holds_a_fifth_out_and_has_five_ten_or_twenty_tasks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", cache(datasets.load_dataset))  # it looks at each file
    path = folder_of(tmp_path, 200, {"train": 5})
    for num_tasks in (None, 5, 20):
        tasks = standard("split-imagenet-r", path, num_tasks, size=4, seed=1993)
        assert len(tasks) == (num_tasks or 10)
        assert sum(len(task.train) for task in tasks) == 800
        assert sum(len(task.evaluation) for task in tasks) == 200
        assert tasks[0].classes != tuple(range(len(tasks[0].classes or ())))  # in the order of the seed
        assert set(labels_of(tasks[0].evaluation).tolist()) <= set(tasks[0].classes or ())


def test_what_is_no_standard_is_refused() -> None:
    with refused("name"):
        standard("seq-cifar", "nowhere")
    with refused("num_tasks"):
        standard("seq-cifar10", "nowhere", 3)
