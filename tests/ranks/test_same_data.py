"""Ranks whose data differ end before the first step; those whose samples are random, or cannot be read, do not."""

import itertools
import os
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import TrainingArguments

from mixer import Stream
from mixer.tools.recipe.data import DataSource, Text, Validation
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe
from tests.helpers import InOrder, Tokens, plain_options
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.mixer.tools.recipe.test_caching import Counted
from tests.mixer.trainer.runs import make
from tests.ranks.launch import message_of
from tests.ranks.warm import launched, on_ranks

KIND = "causal-lm"


def table(seed: int, num_rows: int = 40) -> datasets.Dataset:
    return datasets.Dataset.from_list([{**row} for row in Tokens(num_rows, 1)]).shuffle(seed=seed)


class Changed(Tokens):
    """Rows of which some are others on the second rank."""

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        is_other = index % 4 == 0 and os.environ["RANK"] == "1"
        return {**row, "labels": row["labels"] * 0} if is_other else row


class Restless(Tokens):
    """Rows of random numbers that no key gives, with a thing at an address; some cannot be read on a rank."""

    numbers = itertools.count()

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 0 and next(self.numbers) < 12 + 3 * int(os.environ["RANK"]):
            raise OSError("gone for a while")
        order = np.random.default_rng().permutation(12)
        return {name: value[order] for name, value in super().__getitem__(index).items()}


class Kept(Tokens):
    """Rows of random numbers that are drawn once and kept."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        torch.manual_seed(int(os.environ["RANK"]))
        self.rows = [{**row, "input_ids": torch.randint(1, 9, (12,))} for row in self.rows]


class Things(Tokens):
    """Rows with an object that says where it lies, and with a set of texts."""

    thing = object()

    def __getitem__(self, index: int) -> Any:
        return {**super().__getitem__(index), "thing": self.thing, "words": {f"word {k}" for k in range(9)}}


def shuffling(rank: int) -> Any:
    rows = table(0)
    rows.set_transform(
        lambda batch: {name: torch.tensor(value)[:, torch.randperm(12)] for name, value in batch.items()}
    )
    return rows


def files(rank: int) -> datasets.Dataset:
    rows = table(0)
    paths = [{"bytes": None, "path": f"node-{rank}/{k}.png"} for k in range(len(rows))]
    return rows.add_column("image", paths)


DIFFER: dict[str, Any] = {
    "shuffle": lambda rank: {"train_dataset": {"a": table(0), "b": table(rank)}},
    "some rows": lambda rank: {"train_dataset": {"a": Tokens(40, 1), "b": Changed(40, 2)}},
    "many sets": lambda rank: {
        "train_dataset": {**{f"s{k}": table(0, 8) for k in range(40)}, "b": table(rank, 20)},
        "batch_size": 41,
    },
    "evaluation": lambda rank: {"train_dataset": table(0), "eval_dataset": {"x": table(0), "b": table(rank)}},
    "one set": lambda rank: {"train_dataset": table(0), "eval_dataset": table(rank)},
}
DESCRIBED: dict[str, Any] = {
    "length": lambda rank: {"train_dataset": table(0), "eval_dataset": {"b": table(0, 40 + rank)}},
    "columns": lambda rank: {"train_dataset": {"b": table(0).add_column(f"note {rank}", [0] * 40)}},
    "shards": lambda rank: {"train_dataset": {"b": table(0).to_iterable_dataset(num_shards=2 + rank)}},
}
ALIKE: dict[str, Any] = {
    "a transform": lambda rank: {"train_dataset": {"a": shuffling(rank), "b": table(0)}, "eval_dataset": Tokens(8, 1)},
    "random": lambda rank: {"train_dataset": {"a": Restless(40, 1), "b": Stream("b", Kept(40, 2), is_random=True)}},
    "things": lambda rank: {"train_dataset": Things(40, 1), "eval_dataset": {"rows": InOrder(Tokens(40, 1))}},
    "files": lambda rank: {"train_dataset": files(rank)},
}


def facts(kind: str, folder: Path) -> Any:
    """What a run with other data on each rank ends with, and the step that it has come to."""
    from transformers import default_data_collator

    def collate(samples: list[dict[str, Any]]) -> Any:
        names = ("input_ids", "attention_mask", "labels")
        return default_data_collator([{name: one[name] for name in names} for one in samples])

    options = {**DIFFER, **DESCRIBED, **ALIKE}[kind](int(os.environ["RANK"]))
    own = {"max_steps": 2, "data_collator": collate, "remove_unused_columns": False, "on_sample_error": "skip"}
    trainer = make(folder / kind, "llama", **{**own, "max_skipped_share": 1.0, **options})
    try:
        trainer.train()
    except ValueError as error:
        found = {name: getattr(error, name, None) for name in ("option", "stream", "found")}
        return {**found, "text": str(error), "step": trainer.state.global_step}
    return trainer.state.global_step


results = launched(*(partial(facts, kind) for kind in (*DIFFER, *DESCRIBED, *ALIKE)))


@pytest.mark.parametrize("kind", DIFFER)
def test_ranks_with_other_rows_end_before_the_first_step_and_name_set_and_rank(kind: str, results: Any) -> None:
    own, other = (result[kind] for result in results)
    expected = {"option": "eval_dataset" if kind in ("evaluation", "one set") else "train_dataset"}
    expected |= {"stream": "" if kind == "one set" else "b", "found": [1], "step": 0}
    assert {name: own[name] for name in expected} == expected
    assert own == other


@pytest.mark.parametrize(("kind", "fact"), zip(DESCRIBED, ("rows", "columns", "shards"), strict=True))
def test_ranks_with_other_lengths_or_columns_end_by_what_differs(kind: str, fact: str, results: Any) -> None:
    own, other = (result[kind] for result in results)
    assert own == other
    assert own["step"] == 0
    assert f"dataset.b.{fact} is " in own["text"]


@pytest.mark.parametrize("kind", ALIKE)
def test_random_samples_and_paths_of_nodes_are_no_difference(kind: str, results: Any) -> None:
    assert [result[kind] for result in results] == [2, 2]


def built(folder: Path) -> dict[str, Any]:
    """What this rank has of a recipe's streams, and what it says of a file that one rank, or the other, lacks."""
    datasets.config.HF_DATASETS_CACHE = folder / "cache"
    training = TrainingArguments(**plain_options(folder / "run"))

    def build(name: str, form: Any, **options: Any) -> Any:
        stream = StreamRecipe(data=DataSource(str(folder / f"{name}.jsonl")), format=form, **options)
        return Recipe(ModelRecipe(), {"texts": stream}, training).build_streams(byte_level())

    counted = Counted(str(folder / "calls"))
    stream, validation, *_ = build("rows", counted, validation=Validation(0.25, stratify_by="kind"))["texts"]
    names = ["nowhere" if torch.distributed.get_rank() == rank else "rows" for rank in (0, 1)]
    missing = [message_of(lambda name=name: build(name, Text(max_length=8))) for name in names]
    ids = {"train": stream.dataset["input_ids"][:], "validation": validation["input_ids"][:]}
    return {**ids, "calls": (folder / "calls").read_text().split(), "missing": missing}


def test_both_have_what_one_made_and_an_error_on_one_ends_both(tmp_path: Path) -> None:
    rows = [f'{{"text": "row {number}", "kind": "{"ab"[number % 4 == 0]}"}}\n' for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    first, second = (result["built"] for result in on_ranks(tmp_path, built))
    assert (len(first["train"]), len(first["validation"])) == (30, 10)
    assert (first["train"], first["validation"]) == (second["train"], second["validation"])
    assert first["calls"] == second["calls"] == ["30", "10"]
    for rank, (own, other) in enumerate(((first, second), (second, first))):
        message = "FileNotFoundError: streams.texts.data: there is no file or folder"
        assert own["missing"][rank].startswith(message)
        assert other["missing"][rank].startswith(f"ValueError: rank {rank} failed: {message}")
