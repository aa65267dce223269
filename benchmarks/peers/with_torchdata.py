"""The plain Trainer, fed by `torchdata.nodes.MultiNodeWeightedSampler`.

Settings: the nodes that torchdata's documentation mixes data sets by, MapStyleWrapper over a shuffling sampler that
knows its epoch (StatefulDistributedSampler, the one that can be resumed), and `CYCLE_FOREVER`. No ParallelMapper:
workers slow rows down that are in memory. The state of the loader is kept beside the Trainer's checkpoint, as a user
has to do.
"""

from pathlib import Path
from typing import Any

import torch
from torchdata.nodes import Batcher, Loader, Mapper, MapStyleWrapper, MultiNodeWeightedSampler, StopCriteria
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from transformers import Trainer

from benchmarks.peers.request import Request, train
from benchmarks.peers.trials import try_all
from benchmarks.peers.work import FedTrainer, Hooked, collate, training_arguments

HOW = {
    "weights": "the sampler's attribute `weights`",
    "weights, privately": "the private tensor `_weighted_sampler.weights`",
    "batch_size": "the batcher's attribute `batch_size`",
    "resume": "`Loader.state_dict`, kept beside the checkpoint by hand",
}
_STATE_FILE = "loader.pt"


def _new_trainer(model: Any, request: Request, privately: bool) -> Trainer:
    nodes = {
        name: MapStyleWrapper(
            dataset, StatefulDistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=request.seed)
        )
        for name, dataset in request.datasets.items()
    }
    weights = dict(zip(nodes, request.shares, strict=True))
    sampler = MultiNodeWeightedSampler(
        nodes, weights, StopCriteria.CYCLE_FOREVER, rank=0, world_size=1, seed=request.seed
    )
    batcher = Batcher(sampler, request.batch_size)
    loader = Loader(Mapper(batcher, collate))
    trainer = FedTrainer(
        model, training_arguments(request.options, **request.arguments, ignore_data_skip=True), collate
    )
    trainer.loader = loader
    state_file = Path(request.folder) / _STATE_FILE

    def change() -> None:
        if request.new_shares is not None and privately:
            sampler._weighted_sampler.weights.copy_(torch.tensor(request.new_shares))
        elif request.new_shares is not None:
            sampler.weights.update(zip(nodes, request.new_shares, strict=True))
        if request.new_batch_size is not None:
            batcher.batch_size = request.new_batch_size

    if request.resume:
        loader.load_state_dict(torch.load(state_file))
    if request.stop_at is not None:
        trainer.add_callback(Hooked(request.stop_at, lambda: torch.save(loader.state_dict(), state_file)))
    if request.change_at is not None:
        trainer.add_callback(Hooked(request.change_at, change))
    return trainer


def new_trainer(model: Any, request: Request) -> Trainer:
    """Makes the trainer; see `benchmarks.peers.request.NewTrainer`."""
    return _new_trainer(model, request, privately=False)


def new_private_trainer(model: Any, request: Request) -> Trainer:
    """Makes one whose weights are changed where only the source code tells of them."""
    return _new_trainer(model, request, privately=True)


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.request.train`."""
    return train(new_trainer, options)


def trials(options: dict[str, Any]) -> dict[str, Any]:
    """Tries what can be done; see `benchmarks.peers.trials.try_all`."""
    return try_all(new_trainer, options, HOW, new_private_trainer)
