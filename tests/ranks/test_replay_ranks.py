"""Memories on two ranks: the same buffer on both, and the one that a single rank would have."""

import json
from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers import replay_worker

# Losses of the model differ in their last digits where batches are cut otherwise, so that near ties may differ.
FREE_OF_THE_MODEL = ("references", "on top", "memory", "disk", "column", "batches", "small")


def _launch(folder: Path, world_size: int, *scenarios: str) -> list[dict[str, Any]]:
    launch_warm("replay_worker.py", folder, *scenarios, world_size=world_size)
    return results_of(folder, f"replay-{world_size}-{'-'.join(scenarios)}", world_size)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(name) for name in ("one", "two")}


@pytest.fixture(scope="module")
def one(folders: dict[str, Path]) -> dict[str, Any]:
    return json.loads(json.dumps(replay_worker.runs(folders["one"])))


@pytest.fixture(scope="module")
def two(folders: dict[str, Path]) -> list[dict[str, Any]]:
    return _launch(folders["two"], 2, "runs", "iterables", "failures", "by_hand")


def union(results: list[dict[str, Any]]) -> list[Any]:
    """The rows of each step, of all ranks."""
    return [sorted(row for rows in ranks for row in rows) for ranks in zip(*(r["rows"] for r in results), strict=True)]


@pytest.mark.parametrize("name", replay_worker.RUNS)
def test_all_ranks_hold_the_same_buffer(name: str, two: list[dict[str, Any]]) -> None:
    first, second = (result["runs"][name] for result in two)
    for part in ("buffer", "held", "counts", "weights"):
        assert first[part] == second[part], part
    assert first["buffer"]["counts"][2] > 0


@pytest.mark.parametrize("name", FREE_OF_THE_MODEL)
def test_it_is_the_buffer_of_one_rank_and_so_are_the_batches(
    name: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    results = [result["runs"][name] for result in two]
    assert results[0]["buffer"] == one[name]["buffer"]
    assert results[0]["held"] == one[name]["held"]
    assert results[0]["counts"] == one[name]["counts"]
    assert union(results) == union([one[name]])


def test_what_is_known_on_every_rank_is_not_sent(two: list[dict[str, Any]]) -> None:
    assert all(result["bytes"] == 0 for result in two[0]["runs"].values())
    assert all(end["bytes"] > 0 for ends in two[0]["iterables"].values() for end in ends)


@pytest.mark.parametrize("name", ["losses", "adaptive"])
def test_what_follows_the_model_is_that_of_one_rank_at_first(
    name: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    results = [result["runs"][name] for result in two]
    assert union(results)[:2] == union([one[name]])[:2]
    kept = [{*map(tuple, found["held"])} for found in (results[0], one[name])]
    assert len(kept[0] & kept[1]) >= len(kept[1]) - 4


@pytest.mark.parametrize("storage", ["disk"])
def test_rows_that_one_rank_had_are_in_the_buffer_of_both(storage: str, two: list[dict[str, Any]]) -> None:
    ends = [result["iterables"][storage] for result in two]
    for first, second in zip(*ends, strict=True):
        for part in ("buffer", "held", "counts", "weights"):
            assert first[part] == second[part], part
    whole, resumed = ends[0]
    assert {part: whole[part] for part in ("buffer", "held", "weights")} == {
        part: resumed[part] for part in ("buffer", "held", "weights")
    }
    trained: set[tuple[int, ...]] = set()
    replayed = 0
    for rows in union([end[0] for end in ends]):
        for stream_id, row in rows:
            assert stream_id < 2 or tuple(row) in trained
            replayed += stream_id == 2
        trained |= {tuple(row) for stream_id, row in rows if stream_id < 2}
    assert replayed > 10
    # Both ranks' rows are remembered: those of the first shards come to the first rank.
    own = [{tuple(row) for rows in end[0]["rows"] for stream_id, row in rows if stream_id == 0} for end in ends]
    held = {tuple(row) for row in whole["held"]}
    assert own[0].isdisjoint(own[1])
    assert held & own[0]
    assert held & own[1]


def test_an_error_on_one_rank_ends_both_before_anything_is_saved(two: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(two):
        *failing, balanced, ring = result["failures"]
        for message in failing[::2]:
            assert message == ("RemoteError: rank 1 failed: ", "")[rank] + "OSError: disk on fire"
        assert failing[1::2] == ["False"] * 3
        assert balanced.startswith("ValueError: Stream 'memory': selection=ClassBalanced needs the 'label'")
        assert ring.startswith("ValueError: Stream 'memory': selection=Ring needs the 'label'")


def test_a_buffer_that_all_ranks_fill_by_hand_has_one_writer(two: list[dict[str, Any]]) -> None:
    first, second = (result["by_hand"] for result in two)
    assert first["held"] == second["held"]
    assert first["weights"] == second["weights"]
    assert first["buffer"]["counts"][2] > 0


@pytest.mark.parametrize(("begun", "world_size"), [("one", 2), ("two", 1)])
def test_a_run_goes_on_exactly_on_another_number_of_ranks(
    begun: str, world_size: int, folders: dict[str, Path], one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    whole = {name: Ledger(folders["one"] / name / "ledger").to_pandas() for name in ("references", "disk")}
    if world_size == 1:
        results = [json.loads(json.dumps(replay_worker.go_on(folders[begun])))]
    else:
        results = [result["go_on"] for result in _launch(folders[begun], world_size, "go_on")]
    assert all(result[name]["buffer"] == results[0][name]["buffer"] for result in results for name in result)
    for name in results[0]:
        own = [result[name] for result in results]
        assert own[0]["buffer"] == one[name]["buffer"]
        assert own[0]["held"] == one[name]["held"]
        assert union(own) == union([one[name]])[4:]
    for name, expected in whole.items():
        columns = ["step", "stream", "count", "seen"]
        assert Ledger(folders[begun] / name / "ledger").to_pandas()[columns].equals(expected[columns])
