"""Tasks of prompts and answers from a folder, for language models, in the orders of published benchmarks."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np

from mixer.tools.recipe.data import Prompt, formatted
from mixer.tools.recipe.data.reading import Reading
from mixer.tools.recipe.data.row_files import read_files
from mixer.tools.recipe.data.suffixes import suffix_of
from mixer.tools.recipe.places import placed
from mixer.utils.errors import InvalidValueError
from mixer.utils.held_out import hold_out
from mixer.utils.ranges import check_count
from tasks.sequences.parts import check_seed, listed
from tasks.task import Task, TaskSequence

# TRACE: Wang et al. 2023, arXiv:2310.06762. O-LoRA: Wang et al. 2023, arXiv:2310.14152, tasks named as in its files;
# orders 1 to 3 have four tasks, 4 to 6 fifteen (those of Razdaibiedina et al. 2023, arXiv:2301.12314).
ORDERS: dict[str, tuple[str, ...]] = {
    name: tuple(order.split())
    for name, order in {
        "trace": "C-STANCE FOMC MeetingBank Py150 ScienceQA NumGLUE-cm NumGLUE-ds 20Minuten",
        "o_lora_1": "dbpedia amazon yahoo agnews",
        "o_lora_2": "dbpedia amazon agnews yahoo",
        "o_lora_3": "yahoo amazon agnews dbpedia",
        "o_lora_4": "MNLI CB WiC COPA QQP BoolQA RTE IMDB yelp amazon SST-2 dbpedia agnews MultiRC yahoo",
        "o_lora_5": "MultiRC BoolQA WiC MNLI CB COPA QQP RTE IMDB SST-2 dbpedia agnews yelp amazon yahoo",
        "o_lora_6": "yelp amazon MNLI CB COPA QQP RTE IMDB SST-2 dbpedia agnews yahoo MultiRC BoolQA WiC",
    }.items()
}
# Scores of TRACE's tasks, for `tasks.generated`: of ScienceQA, which gives reasons too, the letter alone.
TRACE_SCORES: dict[str, str] = {
    **dict.fromkeys(("C-STANCE", "FOMC", "NumGLUE-cm", "NumGLUE-ds"), "exact_match"),
    "ScienceQA": "first_word_match",
    "MeetingBank": "rouge_l",
    "20Minuten": "rouge_l",
    "Py150": "edit_similarity",
}


def instructions(
    tokenizer: Any,
    path: Path | str,
    order: str | Sequence[str] | None = None,
    *,
    prompt: str = "{prompt}",
    answer: str = "{answer}",
    evaluation_split: str = "test",
    max_length: int | None = None,
    ignored_columns: Sequence[str] = (),
    max_samples: int | None = None,
    max_evaluation_samples: int | None = None,
    seed: int = 0,
    task: Literal["causal-lm", "seq2seq-lm"] = "causal-lm",
) -> TaskSequence:
    r"""Reads tasks of prompts and answers; the answers are learned.

    A task is a folder with the files of its splits, `NAME/train.json` and `NAME/test.json`, there or in a folder of
    several tasks; or a single file, `NAME.jsonl`, of which a fifth is held out. Names are compared without case and
    punctuation. All formats of `local_files` are read.

    Args:
        tokenizer: The tokenizer, of the model.
        path: The folder of all tasks.
        order: Names of the tasks in their order; or a benchmark's, `"trace"` or `"o_lora_1"` to `"o_lora_6"`; `None`
            takes all tasks that are there, in alphabetical order.
        prompt: Template of the prompt, with columns in braces. For the files of O-LoRA: `"{sentence}\nAnswer:"`.
        answer: Template of the answer. For those of O-LoRA: `" {label}"`.
        evaluation_split: Which file is evaluated on.
        max_length: Most tokens of a sample; see the format `Prompt`.
        ignored_columns: Columns to leave unread; see the format `Prompt`.
        max_samples: Most training samples of a task, drawn by the seed; `None` takes all.
        max_evaluation_samples: The same of evaluation: each is answered anew at every evaluation.
        seed: Seed of what is drawn and held out.
        task: The model's task.

    Returns:
        The sequence, domain-incremental, without classes.

    Raises:
        FileNotFoundError: If there is no such folder, or no files of a task; each is named.
        ValueError: If the order is unknown, a column is missing or a file cannot be read.
    """
    check_seed("instructions: seed", seed)
    for name, most in (("max_samples", max_samples), ("max_evaluation_samples", max_evaluation_samples)):
        if most is not None:
            check_count(f"instructions: {name}", most, 1, "None takes all")
    chosen = Prompt(prompt, answer, max_length, ignored_columns=ignored_columns)

    def samples(rows: Any, most: int | None, key: tuple[int, int], called: str) -> Any:
        if most is not None and most < len(rows):
            rows = rows.select(np.sort(np.random.default_rng((seed, *key)).choice(len(rows), most, replace=False)))
        with placed(called):
            return formatted(rows, chosen, tokenizer, task, called)

    def make(number: int, name: str, place: Path) -> Task:
        train, evaluation = _rows(name, place, evaluation_split, seed)
        return Task(
            name,
            samples(train, max_samples, (number, 0), f"instructions: {name}: train"),
            samples(evaluation, max_evaluation_samples, (number, 1), f"instructions: {name}: {evaluation_split}"),
            description=str(place),
        )

    places = _places(Path(path), _names(order), evaluation_split)
    return TaskSequence(tuple(make(number, *found) for number, found in enumerate(places.items())), "domain")


def _names(order: str | Sequence[str] | None) -> list[str] | None:
    if isinstance(order, str):
        if order not in ORDERS:
            raise InvalidValueError.about("order", f"must be one of {list(ORDERS)} or a list of tasks, got {order!r}.")
        return list(ORDERS[order])
    if order is None:
        return None
    names = listed("instructions: order", order, '["first", "second"]')
    plain = [_plain(str(name)) for name in names]
    if twice := sorted({str(name) for name, own in zip(names, plain, strict=True) if plain.count(own) > 1}):
        raise InvalidValueError.about("instructions: order", f"must name each task once, these come twice: {twice}.")
    return names


def _places(folder: Path, names: list[str] | None, split: str) -> dict[str, Path]:
    """Finds the folder or file of each task."""
    if not folder.is_dir():
        raise FileNotFoundError(f"instructions: path must be a folder of tasks, and there is none at {str(folder)!r}.")
    found = {_plain(_stem(place)): place for place in reversed(list(_tasks_in(folder, split)))}
    wanted = (sorted(map(_stem, found.values())) or ["of any name"]) if names is None else names
    if missing := [name for name in wanted if _plain(name) not in found]:
        raise FileNotFoundError(
            f"instructions: {str(folder)!r} lacks the tasks {missing}; it has {sorted(map(_stem, found.values()))}. "
            f"A task is a folder NAME with the files train.json and {split}.json (or .jsonl, .csv, .parquet), or a "
            "file NAME.jsonl."
        )
    return {name: found[_plain(name)] for name in wanted}


def _tasks_in(folder: Path, split: str, depth: int = 2) -> Iterator[Path]:
    """Yields the folders and files that are tasks, those of this folder before those of folders in it."""
    entries = sorted(folder.iterdir())
    tasks = [
        entry for entry in entries if entry.is_file() or (_split_file(entry, "train") and _split_file(entry, split))
    ]
    yield from (entry for entry in tasks if entry.is_dir() or suffix_of(entry) in (".json", ".jsonl"))
    if depth > 1:
        for entry in entries:
            if entry.is_dir() and entry not in tasks:
                yield from (task for task in _tasks_in(entry, split, depth - 1) if task.is_dir())


def _split_file(folder: Path, split: str) -> Path | None:
    if not folder.is_dir():
        return None
    files = sorted(file for file in folder.iterdir() if file.is_file() and suffix_of(file) and _stem(file) == split)
    return files[0] if files else None


def _stem(place: Path) -> str:
    return place.name if place.is_dir() else place.name.partition(".")[0]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _rows(name: str, place: Path, split: str, seed: int) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Reads the rows of a task, for training and for evaluation."""
    reading = Reading(name, str(place))
    with placed(f"instructions: {name}"):
        if place.is_file():
            rows = read_files([place], reading)
            train, evaluation = hold_out(len(rows), max(1, len(rows) // 5), seed)
            return rows.select(train), rows.select(evaluation)
        files = [_split_file(place, part) for part in ("train", split)]
        train, evaluation = (read_files([file], reading) for file in files if file is not None)
        return train, evaluation
