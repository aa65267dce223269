"""Streams of files on two ranks: tokenised once, divided alike, and an error on one ends both."""

from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import TrainingArguments

from mixer.tools.recipe.data import DataSource, Text, Validation
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe
from tests.helpers import plain_options
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.mixer.tools.recipe.test_caching import Counted
from tests.ranks.launch import message_of
from tests.ranks.warm import on_ranks


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
