"""Runs that change their number of ranks, and iterable streams on two of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mixer import Ledger
from tests.distributed.elastic_worker import elastic, rows_trainer

ROOT = Path(__file__).parents[2]


def _launch(folder: Path, world_size: int, *scenarios: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(world_size)]
    run = subprocess.run(
        [*command, str(Path(__file__).with_name("elastic_worker.py")), str(folder), *scenarios],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    results: dict[str, Any] = json.loads((folder / "elastic-0.json").read_text())
    last = json.loads((folder / f"elastic-{world_size - 1}.json").read_text())
    assert results.get("rows") == last.get("rows")
    return {**results, "failures": (results.get("failures"), last.get("failures"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elastic")


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> dict[str, Any]:
    return _launch(folder, 2, "two", "rows", "failures")


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


def test_rows_of_two_ranks_are_refused_on_one_unless_told_otherwise(folder: Path, two_ranks: dict[str, Any]) -> None:
    checkpoint = str(folder / "rows-0" / "checkpoint-3")
    with pytest.raises(ValueError, match=r"Stream 'rows': .* over 2 ranks .*allow_inexact=True"):
        rows_trainer(folder / "one-rank").train(resume_from_checkpoint=checkpoint)


def test_one_rank_that_fails_among_rows_and_tokens_ends_both(two_ranks: dict[str, Any]) -> None:
    first, second = two_ranks["failures"]
    assert len(first) == len(second) == 4
    for number in (0, 1):
        assert "Stream 'rows': row 8 of lane 1 could not be read: OSError: line cut" in first[number]
        assert first[number].startswith("RemoteError: rank 1 failed: SampleError")
        assert second[number].startswith("SampleError")
    for number in (2, 3):
        assert first[number] == "RemoteError: rank 1 failed: ValueError: no idea"
        assert second[number] == "ValueError: no idea"
