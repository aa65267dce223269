"""Recipes of small runs, trained and simulated, and what both have to agree in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch

from mixer import MixingConfig, MixingTrainer, Policy
from mixer.ledger.ledger import Ledger
from mixer.tools.analysis.simulate import Simulated, simulate
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe
from tests.helpers import VOCABULARY, Tokens, plain_options

HERE = __name__
_SIZES = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
MODEL = ModelRecipe("causal-lm", config={"model_type": "llama", "vocab_size": VOCABULARY, **_SIZES})


def splits(num_samples: int, seed: int) -> dict[str, Any]:
    return {"train": Tokens(num_samples, seed), "validation": Tokens(4, seed + 100)}


def columns(num_samples: int) -> datasets.Dataset:
    """Rows of one length without a mask, in a table."""
    rows = np.random.default_rng(num_samples).integers(1, VOCABULARY, (num_samples, 12)).tolist()
    return datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(3)
        while True:
            ids = torch.randint(1, VOCABULARY, (12,), generator=generator)
            yield {"input_ids": ids, "attention_mask": torch.ones(12, dtype=torch.long), "labels": ids}


def stream(num_samples: int, seed: int, **options: Any) -> StreamRecipe:
    return StreamRecipe(f"{HERE}.splits", {"num_samples": num_samples, "seed": seed}, **options)


def three(**options: dict[str, Any]) -> dict[str, StreamRecipe]:
    sizes = {"a": 40, "b": 23, "c": 9}
    return {name: stream(size, size, **options.get(name, {})) for name, size in sizes.items()}


def recipe(folder: Path, streams: dict[str, StreamRecipe] | None = None, **fields: Any) -> Recipe:
    defaults = {"max_steps": -1, "num_train_epochs": 2.0, "logging_steps": 50, "lr_scheduler_type": "cosine"}
    training = plain_options(folder, **{**defaults, "warmup_steps": 2, **fields.pop("training", {})})
    own = {name: fields.pop(name) for name in ("drawing", "epoch_size") if name in fields}
    return Recipe(MODEL, three() if streams is None else streams, MixingConfig(**training, **own), **fields)


def fresh(made: Any) -> Any:
    """A policy, or what else a recipe has, that has seen no run: made anew."""
    return made() if callable(made) and not isinstance(made, Policy) else made


def train(folder: Path, **fields: Any) -> MixingTrainer:
    trainer = recipe(folder, **{name: fresh(value) for name, value in fields.items()}).build()
    trainer.train()
    return trainer


def plan(folder: Path, num_ranks: int = 1, **fields: Any) -> Simulated:
    made = recipe(folder, **{name: fresh(value) for name, value in fields.items()})
    return simulate(made, num_ranks)


def assert_same(trained: Path, planned: Simulated, but: tuple[str, ...] = ()) -> None:
    """Holds a simulation to the steps of the trained run's ledger, and to its sums by stream."""
    ledger = Ledger(trained / "ledger")
    rows, clock = ledger.to_pandas(), ledger.clock()
    steps = {"batch_size": planned.batch_sizes, "progress": planned.positions, "learning_rate": planned.learning_rates}
    for name, own in steps.items():
        np.testing.assert_array_equal(own, clock[name].to_numpy(), err_msg=name)
    for name, own in {"count": planned.counts, "weight": planned.weights}.items():
        np.testing.assert_array_equal(own, rows[name].to_numpy().reshape(own.shape), err_msg=name)
    last = rows.groupby("stream").last()
    for stream in planned.streams:
        own = {"tokens": stream.tokens, "seen": stream.samples, "coverage": stream.coverage, "epoch": stream.passes}
        sums = {**last.loc[stream.name], "tokens": rows["tokens"][rows["stream"] == stream.name].sum()}
        for name in own.keys() - {*but}:
            np.testing.assert_equal(own[name], sums[name], err_msg=f"{stream.name}: {name}")
