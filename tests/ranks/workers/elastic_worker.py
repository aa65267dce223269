"""What each rank does in the tests of changing ranks and of iterable streams: `torchrun ... FOLDER SCENARIO...`."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import torch
from torch.utils.data import IterableDataset

from mixer import MixingTrainer, Stream
from tests.helpers import Tokens, arguments, build_model, three_streams, weights_of
from tests.ranks.launch import end_with


def elastic(folder: Path, max_steps: int, checkpoint: str | None, mixing: Any = "Uniform") -> MixingTrainer:
    """A run that goes on from a checkpoint of any number of ranks and ends at another one."""
    args = arguments(folder, per_device_train_batch_size=3, max_steps=max_steps, save_strategy="steps", save_steps=4)
    args.lr_scheduler_type = "constant"
    trainer = MixingTrainer(
        build_model("llama"), args, train_dataset=three_streams(), batch_size=8, epoch_size=400, mixing=mixing
    )
    trainer.train(resume_from_checkpoint=checkpoint and str(folder / checkpoint))
    return trainer


def two(folder: Path) -> None:
    elastic(folder / "elastic", 4, None)


def four(folder: Path) -> None:
    elastic(folder / "elastic", 12, "checkpoint-8")


def _shard_rows(shards: list[tuple[int, int]]) -> Iterator[dict[str, list[int]]]:
    for shard, size in shards:
        for number in range(size):
            row = [shard + 1, number + 1, *range(2, 12)]
            yield {"input_ids": row, "labels": row, "attention_mask": [1] * len(row)}


def rows_trainer(folder: Path, **changes: Any) -> MixingTrainer:
    """A run with an iterable stream of two shards, of which the first ends first."""
    shards = datasets.IterableDataset.from_generator(_shard_rows, gen_kwargs={"shards": [(0, 13), (1, 40)]})
    streams = [Stream("rows", shards, max_epochs=1), Stream("map", Tokens(30, 1))]
    options = {"max_steps": 12, "save_strategy": "steps", "save_steps": 3, "per_device_train_batch_size": 3, **changes}
    args = arguments(folder, **options)
    return MixingTrainer(build_model("llama"), args, train_dataset=streams, batch_size=8, mixing="Uniform")


def _hash(trainer: MixingTrainer) -> str:
    return hashlib.sha256(weights_of(trainer.model).numpy().tobytes()).hexdigest()


def rows(folder: Path) -> dict[str, Any]:
    """Weights of a whole run, of resumed ones, and of one with workers; they have to be the same but for the last."""
    hashes: dict[str, Any] = {}
    for num_workers in (0, 1):
        name = f"rows-{num_workers}"
        whole = rows_trainer(folder / name, dataloader_num_workers=num_workers)
        whole.train()
        hashes[name] = _hash(whole)
        for checkpoint in ("checkpoint-3", "checkpoint-9"):
            resumed = rows_trainer(folder / name, dataloader_num_workers=num_workers)
            resumed.train(resume_from_checkpoint=str(folder / name / checkpoint))
            hashes[f"{name}-{checkpoint}"] = _hash(resumed)
    return hashes


class _Rows(IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, num_samples: int, seed: int):
        self._tokens = Tokens(num_samples, seed)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        yield from (self._tokens[number] for number in range(len(self._tokens)))


def odd_rows(folder: Path) -> dict[str, Any]:
    """Weights of whole and of resumed runs of batches and streams that no number of ranks divides."""
    hashes: dict[str, Any] = {}
    for name, sizes in (("two", (50, -7)), ("five", (1, 2, -7, -23, -50))):
        streams = {f"{abs(size)}": Tokens(size, 1) if size > 0 else _Rows(-size, 2) for size in sizes}
        for checkpoint in (None, "checkpoint-18"):
            trainer = MixingTrainer(
                build_model("llama"),
                arguments(folder / f"odd-{name}", max_steps=26, save_strategy="steps", save_steps=18),
                train_dataset=streams,
                mixing="Uniform",
                batch_size=9,
                epoch_size=50,
            )
            trainer.train(resume_from_checkpoint=checkpoint and str(folder / f"odd-{name}" / checkpoint))
            hashes[f"{name}-{checkpoint}"] = _hash(trainer)
    return hashes


def _failing_rows(shards: list[tuple[int, int]]) -> Iterator[dict[str, list[int]]]:
    for row in _shard_rows(shards):
        if row["input_ids"][:2] == [2, 9]:
            raise OSError("line cut")
        yield row


def _no_idea(step: int, weights: Any) -> Any:
    if step == 2 and torch.distributed.get_rank() == 1:
        raise ValueError("no idea")
    return weights


def failures(folder: Path) -> list[str]:
    """What the ranks say where one of them fails while they talk to each other about rows and tokens."""
    messages = []
    shards = {"shards": [(0, 40), (1, 40)]}
    good = datasets.IterableDataset.from_generator(_shard_rows, gen_kwargs=shards)
    bad = datasets.IterableDataset.from_generator(_failing_rows, gen_kwargs=shards)
    for number, (rows, mixing, max_tokens) in enumerate(
        [(bad, "Uniform", None), (bad, "Uniform", 40), (good, _no_idea, None), (good, _no_idea, 40)]
    ):
        trainer = MixingTrainer(
            build_model("llama"),
            arguments(folder / f"failures-{number}", max_steps=12, per_device_train_batch_size=3),
            train_dataset={"rows": rows, "map": Tokens(30, 1)},
            batch_size=8,
            mixing=mixing,
            max_tokens_per_micro_batch=max_tokens,
        )
        try:
            trainer.train()
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def main() -> None:
    folder = Path(sys.argv[1])
    results = {name: globals()[name](folder) for name in sys.argv[2:]}
    end_with(results, folder, "elastic")


if __name__ == "__main__":
    main()
