"""Loading ahead on two ranks, each with worker processes of its own."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import dataloader, get_worker_info

from mixer import LossChange, MixingTrainer
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.ranks.launch import message_of
from tests.ranks.warm import launched

pytestmark = pytest.mark.full


class _Masked(Tokens):
    """Tokens with another twist each time they are read."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = dict(super().__getitem__(index))
        row["input_ids"] = torch.where(torch.rand(len(row["input_ids"])) < 0.2, 1, row["input_ids"])
        return row


class _Deadly(Tokens):
    """Kills the worker that reads sample 7."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == 7 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def _trainer(folder: Path, num_workers: int, streams: dict[str, Any]) -> MixingTrainer:
    workers = {"dataloader_num_workers": num_workers, "dataloader_persistent_workers": num_workers > 0}
    args = arguments(folder, per_device_train_batch_size=2, max_steps=10, **workers)
    policy = LossChange(num_warmup_observations=1)
    return MixingTrainer(build_model("llama"), args, train_dataset=streams, batch_size=9, mixing=policy)


def same(folder: Path) -> list[Any]:
    """Weights and ledgers after an adaptive run of random samples with 0 and with 2 workers."""
    found = []
    for num_workers in (0, 2):
        streams = {"a": _Masked(20, 1), "b": _Masked(11, 2), "c": Tokens(6, 3)}
        trainer = _trainer(folder / str(num_workers), num_workers, streams)
        trainer.train()
        ledger = trainer.ledger if trainer.is_world_process_zero() else None
        found.append([weights_of(trainer.model), ledger and ledger.to_pandas(), ledger and ledger.timings()])
    return found


def dead_worker(folder: Path) -> str:
    # A worker that died is looked for more often than usual, so that this test takes less time.
    dataloader._MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (0.5,)
    return message_of(_trainer(folder / "dead", 1, {"good": Tokens(20, 1), "bad": _Deadly(12, 2)}).train)


results = launched(same, dead_worker)


def test_with_workers_weights_and_ledger_are_those_without(results: list[dict[str, Any]]) -> None:
    (weights, alone, _), (_, helped, batches) = results[0]["same"]
    assert all(torch.equal(weights, found[0]) for result in results for found in result["same"])
    assert alone.equals(helped)
    assert set(helped["staleness"]) == {0}
    assert batches["hits"].sum() > 0
    # The first rank's own samples: five of nine at most, or one of the one that an epoch ends with.
    assert ((batches["hits"] + batches["misses"]) <= -(-batches["total"] // 2)).all()


def test_a_worker_that_dies_on_one_rank_ends_in_an_error_on_both(results: list[dict[str, Any]]) -> None:
    messages = [result["dead_worker"] for result in results]
    assert all("A worker process died" in message for message in messages)
    assert all("stream 'bad', sample 7" in message for message in messages)
    assert sorted(message.split(":")[0] for message in messages) == ["RemoteError", "SampleError"]
