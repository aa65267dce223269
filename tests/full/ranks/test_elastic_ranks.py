"""Runs that change their number of ranks, and iterable streams on two of them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mixer import Ledger
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.elastic_worker import elastic, rows_trainer


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
