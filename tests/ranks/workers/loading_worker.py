"""What each rank does in the tests of loading ahead: `torchrun ... loading_worker.py FOLDER SCENARIO...`."""

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import dataloader, get_worker_info

from mixer import LossChange, MixingTrainer
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.ranks.launch import end_with, message_of


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


class _Broken(Tokens):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == 7:
            raise OSError("disk on fire")
        return super().__getitem__(index)


def _trainer(folder: Path, num_workers: int, streams: dict[str, Any], **changes: Any) -> MixingTrainer:
    options = {
        "per_device_train_batch_size": 2,
        "max_steps": 10,
        "dataloader_num_workers": num_workers,
        "dataloader_persistent_workers": num_workers > 0,
    }
    policy = LossChange(num_warmup_observations=1)
    args = arguments(folder, **{**options, **changes})
    return MixingTrainer(build_model("llama"), args, train_dataset=streams, batch_size=9, mixing=policy)


def same_weights(folder: Path) -> dict[str, str]:
    """A hash of the weights after an adaptive run of random samples with 0 and with 2 workers."""
    results: dict[str, str] = {}
    for num_workers in (0, 2):
        streams = {"a": _Masked(20, 1), "b": _Masked(11, 2), "c": Tokens(6, 3)}
        trainer = _trainer(folder / f"same-{num_workers}", num_workers, streams)
        trainer.train()
        results[str(num_workers)] = hashlib.sha256(weights_of(trainer.model).numpy().tobytes()).hexdigest()
    return results


def dead_worker(folder: Path) -> str:
    # A worker that died is looked for more often than usual, so that this test takes less time.
    dataloader._MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (0.5,)
    return message_of(_trainer(folder / "dead", 1, {"good": Tokens(20, 1), "bad": _Deadly(12, 2)}).train)


def failing_sample(folder: Path) -> str:
    return message_of(_trainer(folder / "failing", 1, {"good": Tokens(20, 1), "bad": _Broken(12, 2)}).train)


def main() -> None:
    folder = Path(sys.argv[1])
    results = {name: globals()[name](folder) for name in sys.argv[2:]}
    end_with(results, folder, "loading")


if __name__ == "__main__":
    main()
