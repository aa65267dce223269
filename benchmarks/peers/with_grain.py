"""The plain Trainer, fed by Grain's `MapDataset.mix`.

Settings: shuffled, repeated map data sets, mixed, as in Grain's documentation. The rows are in memory, where its
sixteen reading threads only take turns on one core, so that it reads in the main thread (`num_threads=0`).
"""

from collections.abc import Iterator
from typing import Any

import grain
from transformers import Trainer

from benchmarks.peers.work import SHARES, Datasets, FedTrainer, collate, train, training_arguments


def _batches(datasets: Datasets, options: dict[str, Any]) -> Iterator[Any]:
    parts = [
        grain.MapDataset.source(dataset).seed(options["seed"] + number).shuffle().repeat()
        for number, dataset in enumerate(datasets.values())
    ]
    mixed = grain.MapDataset.mix(parts, list(SHARES))
    samples = iter(mixed.to_iter_dataset(grain.ReadOptions(num_threads=0)))
    while True:
        yield collate([next(samples) for _ in range(options["batch_size"])])


def _new_trainer(model: Any, datasets: Datasets, options: dict[str, Any]) -> Trainer:
    trainer = FedTrainer(model, training_arguments(options), collate)
    trainer.loader = _batches(datasets, options)
    return trainer


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.work.train`."""
    return train(_new_trainer, options)
