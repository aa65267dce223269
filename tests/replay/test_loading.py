"""Worker processes change nothing but the time, with a memory too."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mixer import LossChange, Stream
from mixer.loading.reader import SampleError
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import Tokens
from tests.replay.buffers import STORAGES, Columns, Masked, arrow, hexadecimal, snapshot, train

SETUPS: dict[str, Any] = {
    "tokens": lambda: {"a": Tokens(37, 1, length=8), "b": Tokens(23, 2, length=8)},
    "columns": lambda: {"a": Columns(37, 1, length=8), "b": Columns(23, 2, length=8)},
    "arrow": lambda: {"a": arrow(37, 1), "b": arrow(23, 2)},
    "random": lambda: {"a": Masked(37, 1, length=8), "b": Tokens(23, 2, length=8)},
}


def run(folder: Path, setup: str, storage: str, num_workers: int, persistent: bool = False, **changes: Any) -> Any:
    buffer = ReplayBuffer(12, storage=STORAGES[storage](folder / "rows"), seed=0)
    args = {"dataloader_num_workers": num_workers, "dataloader_persistent_workers": persistent, "max_steps": 10}
    trainer = train(folder, {**SETUPS[setup](), "memory": buffer}, args=args, **changes)
    batches = trainer.ledger.timings()
    return hexadecimal(trainer), snapshot(buffer), trainer.ledger.to_pandas(), batches


@pytest.mark.parametrize(
    ("setup", "storage", "persistent"),
    [
        ("tokens", "references", True),
        ("tokens", "disk", False),
        ("columns", "references", False),
        ("arrow", "references", True),
        ("arrow", "memory", True),
        ("random", "references", True),
        ("random", "disk", True),
    ],
)
def test_with_workers_weights_entries_and_ledger_are_those_without(
    setup: str, storage: str, persistent: bool, tmp_path: Path
) -> None:
    policy = {"mixing": ReplayRatio(0.3, LossChange(num_warmup_observations=1))}
    alone = run(tmp_path / "0", setup, storage, 0, **policy)
    helped = run(tmp_path / "2", setup, storage, 2, persistent, **policy)
    assert alone[:2] == helped[:2]
    pd.testing.assert_frame_equal(alone[2], helped[2])
    assert set(helped[2]["staleness"]) == {0}


def test_what_a_buffer_refers_to_is_loaded_ahead_while_it_changes(tmp_path: Path) -> None:
    buffer = ReplayBuffer(200, seed=0)
    args = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "max_steps": 20}
    streams = {"a": Tokens(300, 1, length=8), "memory": buffer}
    trainer = train(tmp_path, streams, args=args, mixing=ReplayRatio(0.5))
    batches = trainer.ledger.timings()
    new = 5 * 20
    assert batches["hits"].sum() > 0.7 * new  # the new samples are foretold, but for the first ones
    assert (batches["hits"] + batches["misses"]).sum() == 200
    # A buffer of a fixed size is foretold entry by entry, unless one of them changed.
    fixed = ReplayBuffer(50, is_online=False, seed=0)
    fixed.remember("old", Tokens(60, 3, length=8))
    streams = {"a": Tokens(300, 1, length=8), "memory": fixed}
    batches = train(tmp_path / "fixed", streams, args=args, mixing=ReplayRatio(0.5)).ledger.timings()
    assert batches["misses"].iloc[1:].sum() == 0


def test_contents_are_no_workers_business(tmp_path: Path) -> None:
    _, _, _, batches = run(tmp_path, "tokens", "memory", 2)
    assert (batches["hits"] + batches["misses"]).iloc[2:].max() <= 7


class Broken(Tokens):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise OSError("disk on fire")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_reference_that_cannot_be_read_is_named(num_workers: int, tmp_path: Path) -> None:
    buffer = ReplayBuffer(60, retrieval="LeastRecent", is_online=False, seed=0)
    buffer.remember("old", Broken(40, 1))
    streams = [Stream("a", Tokens(30, 2)), Stream("memory", buffer)]
    args = {"dataloader_num_workers": num_workers}
    with pytest.raises(SampleError, match=r"(?s)'memory'.*Source 'old'.*7.*disk on fire"):
        train(tmp_path, streams, args=args, mixing=ReplayRatio(0.5))


def test_a_data_set_that_is_not_there_is_named_before_it_is_needed_in_vain(tmp_path: Path) -> None:
    buffer = ReplayBuffer(60, is_online=False, seed=0)
    buffer.remember("old", Tokens(40, 1))
    buffer.save(tmp_path / "saved")
    again = ReplayBuffer(60, is_online=False)
    again.load(tmp_path / "saved")
    with pytest.raises(SampleError, match=r"refers to samples of 'old', whose data set is not there.*remember"):
        train(tmp_path, {"a": Tokens(30, 2), "memory": again})
