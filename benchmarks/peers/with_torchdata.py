"""The plain Trainer, fed by `torchdata.nodes.MultiNodeWeightedSampler`.

Settings: the nodes that torchdata's documentation mixes data sets by, MapStyleWrapper over a shuffling sampler that
knows its epoch (StatefulDistributedSampler, the one that can be resumed), and `CYCLE_FOREVER`. No ParallelMapper:
workers slow rows down that are in memory.
"""

from typing import Any

from torchdata.nodes import Batcher, Loader, Mapper, MapStyleWrapper, MultiNodeWeightedSampler, StopCriteria
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from transformers import Trainer

from benchmarks.peers.work import SHARES, Datasets, FedTrainer, collate, train, training_arguments


def _new_trainer(model: Any, datasets: Datasets, options: dict[str, Any]) -> Trainer:
    alone, seed = {"num_replicas": 1, "rank": 0}, options["seed"]
    nodes = {
        name: MapStyleWrapper(dataset, StatefulDistributedSampler(dataset, **alone, shuffle=True, seed=seed))
        for name, dataset in datasets.items()
    }
    weights = dict(zip(nodes, SHARES, strict=True))
    sampler = MultiNodeWeightedSampler(nodes, weights, StopCriteria.CYCLE_FOREVER, rank=0, world_size=1, seed=seed)
    trainer = FedTrainer(model, training_arguments(options), collate)
    trainer.loader = Loader(Mapper(Batcher(sampler, options["batch_size"]), collate))
    return trainer


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.work.train`."""
    return train(_new_trainer, options)
