"""The plain Trainer, fed by Grain's `MapDataset.mix`.

Settings: shuffled, repeated map data sets, mixed, as in Grain's documentation. The rows are in memory, where its
sixteen reading threads only take turns on one core, so that it reads in the main thread (`num_threads=0`). The state of
the iterator is kept beside the Trainer's checkpoint, as a user has to do.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
from transformers import Trainer

from benchmarks.peers.request import Request, train
from benchmarks.peers.trials import order_trial, try_all
from benchmarks.peers.work import FedTrainer, Hooked, collate, training_arguments

HOW = {
    "weights": "no way that lasts through the run; the mixture was built anew and put to the same position",
    "batch_size": "batches made by hand of single samples; `.batch(n)` has a fixed size",
    "resume": "`get_state` of the iterator, kept beside the checkpoint by hand",
}
_STATE_FILE = "loader.json"


class Batches:
    """Batches of a mixture that can be replaced by another one in the midst of a run.

    Args:
        request: What is asked for.
    """

    def __init__(self, request: Request):
        self._request, self._batch_size = request, request.batch_size
        self._samples = iter(self._mixed(request.shares))

    def _mixed(self, shares: tuple[float, ...]) -> Any:
        parts = [
            grain.MapDataset.source(dataset).seed(self._request.seed + number).shuffle().repeat()
            for number, dataset in enumerate(self._request.datasets.values())
        ]
        return grain.MapDataset.mix(parts, list(shares)).to_iter_dataset(grain.ReadOptions(num_threads=0))

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield collate([next(self._samples) for _ in range(self._batch_size)])

    def change(self) -> None:
        """Goes on at the same position of a new mixture, or with another batch size."""
        if self._request.new_shares is not None:
            state = self._samples.get_state()
            self._samples = iter(self._mixed(self._request.new_shares))
            self._samples.set_state(state)
        if self._request.new_batch_size is not None:
            self._batch_size = self._request.new_batch_size

    def save(self, path: Path) -> None:
        """Keeps the position."""
        path.write_text(json.dumps(self._samples.get_state()))

    def load(self, path: Path) -> None:
        """Goes to a position that was kept."""
        self._samples.set_state(json.loads(path.read_text()))


def new_trainer(model: Any, request: Request) -> Trainer:
    """Makes the trainer; see `benchmarks.peers.request.NewTrainer`."""
    arguments = training_arguments(request.options, **request.arguments, ignore_data_skip=True)
    trainer = FedTrainer(model, arguments, collate)
    trainer.loader = batches = Batches(request)
    state_file = Path(request.folder) / _STATE_FILE
    if request.resume:
        batches.load(state_file)
    if request.stop_at is not None:
        trainer.add_callback(Hooked(request.stop_at, lambda: batches.save(state_file)))
    if request.change_at is not None:
        trainer.add_callback(Hooked(request.change_at, batches.change))
    return trainer


def training(options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training; see `benchmarks.peers.request.train`."""
    return train(new_trainer, options)


def trials(options: dict[str, Any]) -> dict[str, Any]:
    """Tries what can be done; see `benchmarks.peers.trials.try_all`."""
    return {**try_all(new_trainer, options, HOW), "order": order_trial(_shuffled_pass)}


def _shuffled_pass(num_rows: int) -> list[int]:
    shuffled = grain.MapDataset.range(num_rows).seed(0).shuffle()
    return [int(shuffled[position]) for position in range(num_rows)]
