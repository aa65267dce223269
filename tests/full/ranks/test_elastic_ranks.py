"""Runs that change their number of ranks, and iterable streams on two of them."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from torch.utils.data import IterableDataset

from mixer import Ledger, MixingTrainer, Stream
from tests.helpers import Tokens, arguments, build_model, three_streams, weights_of


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


def _launch(folder: Path, world_size: int, *scenarios: str) -> dict[str, Any]:
    launch_warm("elastic_worker.py", folder, *scenarios, world_size=world_size)
    every = results_of(folder, "elastic", world_size)
    results, last = every[0], every[-1]
    assert results.get("rows") == last.get("rows")
    assert results.get("odd_rows") == last.get("odd_rows")
    return {**results, "failures": (results.get("failures"), last.get("failures"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elastic")


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> dict[str, Any]:
    return _launch(folder, 2, "two", "rows", "odd_rows", "failures")


def test_two_ranks_then_one_then_four_give_the_run_of_one(folder: Path, two_ranks: dict[str, Any]) -> None:
    elastic(folder / "elastic", 8, "checkpoint-4")
    _launch(folder, 4, "four")
    whole = elastic(folder / "one", 12, None).ledger.to_pandas()
    changed = Ledger(folder / "elastic" / "ledger").to_pandas()
    pd.testing.assert_frame_equal(changed.drop(columns="loss"), whole.drop(columns="loss"))
    pd.testing.assert_series_equal(changed["loss"], whole["loss"], atol=1e-4, rtol=0)


def test_a_shard_that_ends_on_one_rank_ends_the_stream_for_both(folder: Path, two_ranks: dict[str, Any]) -> None:
    ledger = Ledger(folder / "rows-0" / "ledger").to_pandas()
    rows = ledger[ledger["stream"] == "rows"].set_index("step")
    given = int(rows["seen"].iloc[-1])
    assert 24 <= given <= 27  # about twice the shorter shard
    assert rows["undelivered"].iloc[-1] == 53 - given
    assert rows["count"].iloc[-1] == 0
    assert ledger.groupby("step")["count"].sum().tolist() == [8, 8, 8, 6] * 3  # an epoch: the 30 of the other stream
    assert rows["coverage"].isna().all()


@pytest.mark.parametrize("name", ["rows-0", "rows-1"])
def test_rows_go_on_to_the_bit_on_as_many_ranks(two_ranks: dict[str, Any], name: str) -> None:
    hashes = two_ranks["rows"]
    assert hashes[name] == hashes[f"{name}-checkpoint-3"] == hashes[f"{name}-checkpoint-9"]


@pytest.mark.parametrize("name", ["two", "five"])
def test_batches_and_rows_that_ranks_do_not_divide_train_and_go_on(two_ranks: dict[str, Any], name: str) -> None:
    hashes = two_ranks["odd_rows"]
    assert hashes[f"{name}-None"] == hashes[f"{name}-checkpoint-18"]


def test_rows_of_two_ranks_are_refused_on_one_unless_told_otherwise(folder: Path, two_ranks: dict[str, Any]) -> None:
    checkpoint = str(folder / "rows-0" / "checkpoint-3")
    with pytest.raises(ValueError, match=r"Stream 'rows': .* over 2 ranks .*allow_inexact=True"):
        rows_trainer(folder / "one-rank").train(resume_from_checkpoint=checkpoint)


def test_one_rank_that_fails_among_rows_and_tokens_ends_both(two_ranks: dict[str, Any]) -> None:
    first, second = two_ranks["failures"]
    assert len(first) == len(second) == 4
    for number in (0, 1):
        assert "Stream 'rows': row 8 of shard 1 could not be read: OSError: line cut" in first[number]
        assert first[number].startswith("RemoteError: rank 1 failed: SampleError")
        assert second[number].startswith("SampleError")
    for number in (2, 3):
        assert first[number].startswith("RemoteError: rank 1 failed: ValueError: no idea")
        assert second[number] == "ValueError: no idea"
