"""Loading ahead in a whole run: worker processes change nothing but the time."""

import os
import signal
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from torch.utils.data import dataloader

from mixer import LossChange, MixingTrainer, Uniform
from mixer.loading.reader import SampleError
from mixer.utils.random_state import seeded
from tests.helpers import VOCABULARY, Tokens, arguments, build_model, three_streams, weights_of


def run(folder: Path, num_workers: int, **changes: Any) -> MixingTrainer:
    loading = {"dataloader_num_workers": num_workers, "dataloader_persistent_workers": num_workers > 0}
    options = {"max_steps": 8, "per_device_train_batch_size": 4, "seed": 5, **loading, **changes.pop("args", {})}
    fields = {"model": build_model("llama"), "train_dataset": three_streams(), "batch_size": 9, **changes}
    trainer = MixingTrainer(args=arguments(folder, **options), **fields)
    trainer.train()
    return trainer


class Masked(Tokens):
    """Tokens with another twist each time they are read."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = dict(super().__getitem__(index))
        row["input_ids"] = torch.where(torch.rand(len(row["input_ids"])) < 0.2, 1, row["input_ids"])
        return row


def shaking_collator(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    batch["input_ids"] = torch.where(torch.rand(batch["input_ids"].shape) < 0.1, 2, batch["input_ids"])
    return batch


def arrow_rows() -> dict[str, datasets.Dataset]:
    def shifted(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        shift = int(torch.randint(0, VOCABULARY, (1,)))
        rows = [[(token + shift) % VOCABULARY for token in row] for row in batch["input_ids"]]
        return {"input_ids": rows, "labels": rows}

    plain = {name: [[k, k + 1, 3, 4] for k in range(20)] for name in ("input_ids", "labels")}
    return {
        "plain": datasets.Dataset.from_dict({**plain, "text": ["unused"] * 20}),
        "shifted": datasets.Dataset.from_dict(plain).with_transform(shifted),
    }


SETUPS: dict[str, Any] = {
    "adaptive": lambda: {"mixing": LossChange(num_warmup_observations=1)},
    "random": lambda: {
        "train_dataset": {"a": Masked(20, 1), "b": Masked(11, 2), "c": Tokens(6, 3)},
        "data_collator": shaking_collator,
        "mixing": LossChange(num_warmup_observations=1),
    },
    "arrow": lambda: {"train_dataset": arrow_rows(), "mixing": lambda step, weights: [1 + step % 3, 1]},
    "epochs": lambda: {"args": {"max_steps": -1, "num_train_epochs": 2, "dataloader_persistent_workers": False}},
}


@pytest.mark.parametrize("name", SETUPS)
def test_with_workers_weights_and_ledger_are_those_without(name: str, tmp_path: Path) -> None:
    alone, helped = (run(tmp_path / str(number), number, **SETUPS[name]()) for number in (0, 2))
    assert torch.equal(weights_of(alone.model), weights_of(helped.model))
    rows = helped.ledger.to_pandas()
    pd.testing.assert_frame_equal(alone.ledger.to_pandas(), rows)
    assert set(rows["staleness"]) == {0}


def test_hits_and_misses_are_in_the_ledger(tmp_path: Path) -> None:
    alone = run(tmp_path / "0", 0, mixing=Uniform()).ledger.timings()
    batches = run(tmp_path / "1", 1, mixing=Uniform()).ledger.timings()
    assert (alone["hits"] + alone["misses"]).sum() == 0
    assert (batches["hits"] + batches["misses"]).tolist() == batches["total"].tolist()
    assert batches["hits"].tolist() == [0, *batches["total"][1:]]


def test_a_label_is_collated_as_without_workers(tmp_path: Path) -> None:
    rows = Tokens(12, 1, "sequence-classification").rows
    rows = [{"label" if name == "labels" else name: values for name, values in row.items()} for row in rows]
    found = []
    for number in (0, 1):
        model = build_model("bert-classifier")
        run(tmp_path / str(number), number, model=model, train_dataset=rows, batch_size=4)
        found.append(weights_of(model))
    assert torch.equal(*found)


def test_the_random_state_of_the_run_is_the_one_without_workers(tmp_path: Path) -> None:
    states = []
    for number in (0, 1):
        with seeded(1):
            run(tmp_path / str(number), number, **SETUPS["random"]())
            states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_no_worker_stays_after_a_run(tmp_path: Path) -> None:
    trainer = run(tmp_path, 1)
    assert trainer._parts.run.loader._prefetcher._workers._answers.results is None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_resumed_run_ends_with_the_same_weights(num_workers: int, tmp_path: Path) -> None:
    whole = run(
        tmp_path / "whole", 1 - num_workers, **SETUPS["random"](), args={"save_strategy": "steps", "save_steps": 4}
    )
    options = {**SETUPS["random"](), "model": build_model("llama"), "batch_size": 9}
    args = {"max_steps": 8, "per_device_train_batch_size": 4, "seed": 5, "dataloader_num_workers": num_workers}
    resumed = MixingTrainer(args=arguments(tmp_path / "resumed", **args), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))


class Deadly(Tokens):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == 5 and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Broken(Tokens):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == 5:
            raise OSError("disk on fire")
        return super().__getitem__(index)


def test_a_worker_that_is_killed_ends_the_run_with_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.5,))
    with pytest.raises(SampleError, match=r"A worker process died; .* stream 'bad', sample 5"):
        run(tmp_path, 1, train_dataset={"good": Tokens(20, 1), "bad": Deadly(12, 2)})


def test_a_sample_that_fails_in_a_worker_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="Stream 'bad': sample 5 could not be loaded: OSError: disk on fire"):
        run(tmp_path, 1, train_dataset={"good": Tokens(20, 1), "bad": Broken(12, 2)})
