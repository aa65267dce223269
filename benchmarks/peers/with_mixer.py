"""This toolkit: `MixingTrainer` with fixed weights, on the same Arrow data sets as all others."""

from typing import Any

from transformers import Trainer

from benchmarks.peers.request import Request, train
from benchmarks.peers.trials import order_trial, try_all
from benchmarks.peers.work import Hooked, collate, training_arguments
from mixer import MixingDataLoader, MixingTrainer
from mixer.policies import Fixed

HOW = {
    "weights": "`trainer.mixing.set_weights`, in a callback",
    "batch_size": "`trainer.mixing.set_batch_size`, in a callback",
    "resume": "`resume_from_checkpoint`",
    "resume_batch_size": "`resume_from_checkpoint`, with `trainer.mixing.set_batch_size` before `train`",
}


def new_trainer(model: Any, request: Request) -> Trainer:
    """Makes the trainer; see `benchmarks.peers.request.NewTrainer`."""
    arguments = training_arguments(request.options, **request.arguments)
    trainer = MixingTrainer(
        model,
        arguments,
        collate,
        request.datasets,
        mixing=Fixed(request.shares),
        batch_size=request.saved_batch_size or request.batch_size,
    )
    if request.saved_batch_size is not None:
        trainer.mixing.set_batch_size(request.batch_size)

    def change() -> None:
        if request.new_shares is not None:
            trainer.mixing.set_weights(request.new_shares)
        if request.new_batch_size is not None:
            trainer.mixing.set_batch_size(request.new_batch_size)

    if request.change_at is not None:
        trainer.add_callback(Hooked(request.change_at, change))
    return trainer


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.request.train`."""
    return train(new_trainer, options)


def trials(options: dict[str, Any]) -> dict[str, Any]:
    """Tries what can be done; see `benchmarks.peers.trials.try_all`."""
    return {**try_all(new_trainer, options, HOW), "order": order_trial(_shuffled_pass)}


def _shuffled_pass(num_rows: int) -> list[int]:
    loader = MixingDataLoader(range(num_rows), batch_size=1_024)
    return [int(row) for batch in loader for row in batch]
