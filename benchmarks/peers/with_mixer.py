"""This toolkit: `MixingTrainer` with fixed weights, on the same Arrow data sets as all others."""

from typing import Any

from transformers import Trainer

from benchmarks.peers.work import SHARES, Datasets, collate, train, training_arguments
from mixer import MixingTrainer
from mixer.policies import Fixed


def _new_trainer(model: Any, datasets: Datasets, options: dict[str, Any]) -> Trainer:
    size, arguments = options["batch_size"], training_arguments(options)
    return MixingTrainer(model, arguments, collate, datasets, mixing=Fixed(SHARES), batch_size=size)


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.work.train`."""
    return train(_new_trainer, options)
