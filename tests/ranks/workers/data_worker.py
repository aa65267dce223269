"""Two ranks build the streams of a recipe: what each of them has, and what each did for it."""

import sys
from pathlib import Path

import datasets
from transformers import TrainingArguments

from mixer.recipe.data import DataSource, Text, Validation
from mixer.recipe.model import ModelRecipe
from mixer.recipe.recipe import Recipe
from mixer.recipe.streams import StreamRecipe
from tests.helpers import plain_options
from tests.mixer.recipe.small_tokenizers import byte_level
from tests.mixer.recipe.test_caching import Counted
from tests.ranks.launch import end_with, message_of


def main() -> None:
    folder = Path(sys.argv[1])
    datasets.config.HF_DATASETS_CACHE = folder / "cache"
    datasets.disable_progress_bars()
    training = TrainingArguments(**plain_options(folder / "run"))
    log = folder / "calls"
    good = StreamRecipe(
        data=DataSource(str(folder / "rows.jsonl")),
        format=Counted(str(log)),
        validation=Validation(0.25, stratify_by="kind"),
    )
    recipe = Recipe(ModelRecipe(), {"good": good}, training)
    streams = recipe.build_streams(byte_level())
    stream, validation, *_ = streams["good"]
    results = {
        "train": stream.dataset["input_ids"][:],
        "validation": validation["input_ids"][:],
        "calls": log.read_text().split(),
    }
    for rank in (0, 1):
        name = "nowhere" if training.process_index == rank else "rows"
        source = DataSource(str(folder / f"{name}.jsonl"))
        recipe = Recipe(ModelRecipe(), {"missing": StreamRecipe(data=source, format=Text(max_length=8))}, training)
        results[f"missing on {rank}"] = message_of(lambda made=recipe: made.build_streams(byte_level()))
    end_with(results, folder, "data")


if __name__ == "__main__":
    main()
