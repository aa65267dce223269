"""Data sets with something wrong in them, for recipes by `factory`, and the recipes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import IterableDataset

from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe
from tests.helpers import arguments

VOCABULARY = 64
HERE = "tests.mixer.tools.analysis.inspect.sources"
SIZES = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {"model_type": "llama", "vocab_size": VOCABULARY, "max_position_embeddings": 32, **SIZES}


def rows(num_samples: int, seed: int, length: int = 8) -> list[dict[str, list[int]]]:
    """Different rows of tokens, all learned."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, VOCABULARY, (num_samples, length)).tolist()
    return [{"input_ids": row, "labels": row} for row in tokens]


def plain(num_samples: int = 40, seed: int = 1, length: int = 8) -> Any:
    return Dataset.from_list(rows(num_samples, seed, length))


def leaking() -> dict[str, Any]:
    """5 of 10 validation rows are trained on; 4 of 40 training rows repeat others, 3 are those of `plain`."""
    own = rows(33, seed=2)
    train = [*own, *own[:4], *rows(40, seed=1)[:3]]
    return {"train": Dataset.from_list(train), "validation": Dataset.from_list([*own[:5], *rows(5, seed=3)])}


def faulty() -> Any:
    """Of 20 rows: 2 empty, 3 with nothing to learn, 1 beyond the vocabulary, 2 longer than the positions."""
    good = rows(12, seed=4)
    nothing = [{"input_ids": row["input_ids"], "labels": [-100] * 8} for row in rows(3, seed=5)]
    unknown = {"input_ids": [5, VOCABULARY], "labels": [5, 5]}
    empty: dict[str, list[int]] = {"input_ids": [], "labels": []}
    made = Dataset.from_list([*good, *nothing, unknown, empty, empty, *rows(2, seed=6, length=33)])
    return made.with_transform(dict)  # whose token ids are not read at construction


class Breaking(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of which some cannot be read."""

    def __init__(self, broken: list[int]):
        self.rows, self.broken = rows(30, seed=7), broken

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.broken:
            raise KeyError(f"[red]page {index}[/red] is torn")
        return self.rows[index]


class Streamed(IterableDataset[dict[str, Any]]):
    """Rows in their own order, as many as one likes."""

    def __init__(self, num_rows: int, breaks_at: int = -1):
        self.num_rows, self.breaks_at = num_rows, breaks_at

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.num_rows):
            if number == self.breaks_at:
                raise OSError("connection lost")
            yield {"input_ids": [number % VOCABULARY] * 8, "labels": [number % VOCABULARY] * 8}


def images(labels: list[int]) -> Any:
    """Tokens with a class each."""
    return Dataset.from_list([{"input_ids": [number % 60, 1], "labels": label} for number, label in enumerate(labels)])


def recipe(folder: Any, streams: dict[str, Any], **changes: Any) -> Recipe:
    """A recipe of streams by the names of functions here, with their arguments."""
    training = changes.pop("training", {})
    made = {
        name: StreamRecipe(factory=f"{HERE}.{function}", arguments=given, **options)
        for name, (function, given, options) in streams.items()
    }
    model = changes.pop("model", ModelRecipe(config=LLAMA))
    options = {"per_device_train_batch_size": 8, "max_steps": 10, **training}
    return Recipe(model=model, streams=made, training=arguments(folder, **options), **changes)
