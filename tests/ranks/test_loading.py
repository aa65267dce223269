"""Loading ahead on two ranks, each with worker processes of its own."""

from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm

SCENARIOS = ("same_weights", "dead_worker", "failing_sample")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loading")
    launch_warm("loading_worker.py", path, *SCENARIOS)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "loading")


def test_with_workers_the_weights_are_those_without(results: list[dict[str, Any]]) -> None:
    assert len({weights for result in results for weights in result["same_weights"].values()}) == 1


def test_with_workers_the_ledger_is_the_one_without(folder: Path) -> None:
    alone, helped = (Ledger(folder / f"same-{number}" / "ledger") for number in (0, 2))
    assert alone.to_pandas().equals(helped.to_pandas())
    assert set(helped.to_pandas()["staleness"]) == {0}
    batches = helped.timings()
    assert batches["hits"].sum() > 0
    # The first rank's own samples: five of nine at most, or one of the one that an epoch ends with.
    assert ((batches["hits"] + batches["misses"]) <= -(-batches["total"] // 2)).all()


def test_a_worker_that_dies_on_one_rank_ends_in_an_error_on_both(results: list[dict[str, Any]]) -> None:
    messages = [result["dead_worker"] for result in results]
    assert all("A worker process died" in message for message in messages)
    assert all("stream 'bad', sample 7" in message for message in messages)
    assert sorted(message.split(":")[0] for message in messages) == ["RemoteError", "SampleError"]


def test_a_sample_that_fails_on_one_rank_ends_in_an_error_on_both(results: list[dict[str, Any]]) -> None:
    messages = [result["failing_sample"] for result in results]
    assert all("Stream 'bad': sample 7 could not be loaded: OSError: disk on fire" in message for message in messages)
    assert sorted(message.split(":")[0] for message in messages) == ["RemoteError", "SampleError"]
