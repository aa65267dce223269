"""The plain Trainer on `datasets.interleave_datasets`, map-style and iterable.

Settings: what the documentation of datasets shows. Map-style data sets are interleaved and shuffled by the Trainer's
own sampler; iterable ones go through `shuffle(buffer_size=1000)`, the default size. Both end where the first data set
does, which no run here comes to; where one may, they end when all have (`all_exhausted`).
"""

from typing import Any

from datasets import interleave_datasets
from transformers import Trainer

from benchmarks.peers.request import Request, train
from benchmarks.peers.trials import try_all
from benchmarks.peers.work import Hooked, collate, training_arguments

_BUFFER_SIZE = 1_000
HOW = {
    "weights": "the list given as `probabilities`, changed in place",
    "batch_size": "`args.per_device_train_batch_size`, in a callback",
    "resume": "`resume_from_checkpoint`, which skips batches",
}


def new_map_trainer(model: Any, request: Request) -> Trainer:
    """Makes the trainer on map-style data sets; see `benchmarks.peers.request.NewTrainer`."""
    probabilities = list(request.shares)
    strategy: Any = "first_exhausted" if request.passes == 1 else "all_exhausted"
    mixed = interleave_datasets(
        list(request.datasets.values()), probabilities, seed=request.seed, stopping_strategy=strategy
    )
    return _with_change(_plain(model, request, mixed.with_format("torch")), probabilities, request)


def new_iterable_trainer(model: Any, request: Request) -> Trainer:
    """Makes the trainer on iterable data sets; see `benchmarks.peers.request.NewTrainer`."""
    probabilities = list(request.shares)
    strategy: Any = "first_exhausted" if request.passes == 1 else "all_exhausted"
    iterables = [dataset.to_iterable_dataset() for dataset in request.datasets.values()]
    mixed = interleave_datasets(iterables, probabilities, seed=request.seed, stopping_strategy=strategy)
    shuffled = mixed.shuffle(seed=request.seed, buffer_size=_BUFFER_SIZE).with_format("torch")
    return _with_change(_plain(model, request, shuffled), probabilities, request)


def _plain(model: Any, request: Request, dataset: Any) -> Trainer:
    return Trainer(model, training_arguments(request.options, **request.arguments), collate, dataset)


def _with_change(trainer: Trainer, probabilities: list[float], request: Request) -> Trainer:
    def change() -> None:
        if request.new_shares is not None:
            probabilities[:] = request.new_shares
        if request.new_batch_size is not None:
            trainer.args.per_device_train_batch_size = request.new_batch_size

    if request.change_at is not None:
        trainer.add_callback(Hooked(request.change_at, change))
    return trainer


def map_training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.request.train`."""
    return train(new_map_trainer, options)


def iterable_training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.request.train`."""
    return train(new_iterable_trainer, options)


def map_trials(options: dict[str, Any]) -> dict[str, Any]:
    """Tries what can be done; see `benchmarks.peers.trials.try_all`."""
    return try_all(new_map_trainer, options, HOW)


def iterable_trials(options: dict[str, Any]) -> dict[str, Any]:
    """Tries what can be done; see `benchmarks.peers.trials.try_all`."""
    return try_all(new_iterable_trainer, options, HOW)
