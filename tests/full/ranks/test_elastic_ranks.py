"""Runs that change their number of ranks, and iterable streams on two of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import torch

from mixer import Ledger, MixingTrainer, Stream
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer.runs import make, train
from tests.ranks.warm import Results, launched, on_ranks


def elastic(folder: Path, max_steps: int, checkpoint: str | None, mixing: Any = "Uniform") -> MixingTrainer:
    """A run that goes on from a checkpoint of any number of ranks and ends at another one."""
    own = {"per_device_train_batch_size": 3, "save_strategy": "steps", "save_steps": 4, "max_steps": max_steps}
    own |= {"lr_scheduler_type": "constant", "batch_size": 8, "epoch_size": 400, "mixing": mixing}
    return train(folder, resume=checkpoint and folder / checkpoint, **own)


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
    return make(folder, train_dataset=streams, batch_size=8, mixing="Uniform", **options)


def rows(folder: Path) -> list[torch.Tensor]:
    """Weights of a whole run, and of what it goes on to from checkpoints."""
    ends = []
    for checkpoint in (None, 3, 9):
        trainer = rows_trainer(folder / "rows", dataloader_num_workers=1)
        trainer.train(resume_from_checkpoint=checkpoint and str(folder / "rows" / f"checkpoint-{checkpoint}"))
        ends.append(weights_of(trainer.model))
    return ends


results = launched(two, rows)


def test_two_ranks_then_one_then_four_give_the_run_of_one(results: Results) -> None:
    folder = results[0]["folder"]
    elastic(folder / "elastic", 8, "checkpoint-4")
    on_ranks(folder, four, world_size=4)
    whole = elastic(folder / "one", 12, None).ledger.to_pandas()
    changed = Ledger(folder / "elastic" / "ledger").to_pandas()
    pd.testing.assert_frame_equal(changed.drop(columns="loss"), whole.drop(columns="loss"))
    pd.testing.assert_series_equal(changed["loss"], whole["loss"], atol=1e-4, rtol=0)


def test_rows_left_on_one_rank_are_given_on_both(results: Results) -> None:
    ledger = Ledger(results[0]["folder"] / "rows" / "ledger").to_pandas()
    of_rows = ledger[ledger["stream"] == "rows"].set_index("step")
    assert of_rows["seen"].iloc[-1] == 48  # half of each step; the shorter shard and the longer have 53
    assert of_rows["undelivered"].iloc[-1] == 0
    assert ledger.groupby("step")["count"].sum().tolist() == [8] * 12  # no step is cut by the other stream's 30
    assert of_rows["coverage"].isna().all()


def test_rows_go_on_to_the_bit(results: Results) -> None:
    for end in (end for result in results for end in result["rows"]):
        assert torch.equal(end, results[0]["rows"][0])
