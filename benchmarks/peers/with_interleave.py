"""The plain Trainer on `datasets.interleave_datasets`, map-style and iterable.

Settings: what the documentation of datasets shows. Map-style data sets are interleaved and shuffled by the Trainer's
own sampler; iterable ones go through `shuffle(buffer_size=1000)`, the default size. Both end where the first data set
does, which no run here comes to.
"""

from typing import Any

from datasets import interleave_datasets
from transformers import Trainer

from benchmarks.peers.work import SHARES, Datasets, collate, train, training_arguments

_BUFFER_SIZE = 1_000


def _new_map_trainer(model: Any, datasets: Datasets, options: dict[str, Any]) -> Trainer:
    mixed = interleave_datasets(list(datasets.values()), list(SHARES), seed=options["seed"])
    return Trainer(model, training_arguments(options), collate, mixed.with_format("torch"))


def _new_iterable_trainer(model: Any, datasets: Datasets, options: dict[str, Any]) -> Trainer:
    iterables = [dataset.to_iterable_dataset() for dataset in datasets.values()]
    mixed = interleave_datasets(iterables, list(SHARES), seed=options["seed"])
    shuffled: Any = mixed.shuffle(seed=options["seed"], buffer_size=_BUFFER_SIZE).with_format("torch")
    return Trainer(model, training_arguments(options), collate, shuffled)


def map_training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.work.train`."""
    return train(_new_map_trainer, options)


def iterable_training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.work.train`."""
    return train(_new_iterable_trainer, options)
