"""Two nodes: two agents of torchrun with a rendezvous by c10d, on one disk and with a disk each."""

from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger
from tests.ranks.launch import ROOT, launch_nodes, launch_well, results_of

WORKER = "two_nodes_worker.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two-nodes")
    worker = str(ROOT / "tests" / "ranks" / "workers" / WORKER)
    (path / "shared").mkdir()
    nodes = launch_nodes(*([worker, str(path / "shared"), str(path / f"node-{node}")] for node in range(2)))
    assert [node.returncode for node in nodes] == [0, 0], nodes[0].stderr[-4000:] + nodes[1].stderr[-4000:]
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder / "shared", "results")


def test_two_nodes_train_as_two_ranks_of_one_node(results: list[dict[str, Any]], tmp_path: Path, folder: Path) -> None:
    launch_well(WORKER, tmp_path, str(tmp_path))
    one_node = results_of(tmp_path, "results")
    for rank in range(2):
        assert results[rank]["shared"]["end"]["weights"] == one_node[rank]["shared"]["end"]["weights"]
        assert results[rank]["shared"]["end"]["logs"] == one_node[rank]["shared"]["end"]["logs"]
    expected, rows = (Ledger(path / "run" / "ledger").to_pandas() for path in (tmp_path, folder / "shared"))
    assert rows.equals(expected)


def test_both_go_on_as_if_they_had_never_stopped(results: list[dict[str, Any]]) -> None:
    assert [result[kind]["different"] for result in results for kind in ("shared", "own")] == [[], [], [], []]


def test_a_disk_of_its_own_changes_nothing(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["own"]["end"]["weights"] == result["shared"]["end"]["weights"]


def test_each_node_keeps_whole_checkpoints_and_the_first_one_the_ledger(results: list[dict[str, Any]]) -> None:
    first, second = (result["own"]["files"] for result in results)
    assert [name for name in first if not name.startswith("ledger/")] == second
    assert any(name.startswith("ledger/") for name in first)
    needed = {"model.safetensors", "optimizer.pt", "mixing.json", "rng_state_0.pth", "rng_state_1.pth", "complete.json"}
    assert needed <= {name.removeprefix("checkpoint-10/") for name in second}
    assert [result["rows"] for result in results] == [
        ["rng_state_0.pth", "rng_state_1.pth", "rows-0.json", "rows-1.json"]
    ] * 2


def test_nodes_go_on_from_the_newest_checkpoint_that_is_whole_on_both(
    results: list[dict[str, Any]], folder: Path
) -> None:
    for node, result in enumerate(results):
        run = folder / f"node-{node}" / "run"
        assert result["own"]["newest"] == str(run / "checkpoint-8")
        assert result["own"]["asked"].startswith("ValueError: Rank 1: Cannot resume from")
        assert "optimizer.pt is torn" in result["own"]["asked"]
        assert result["own"]["resumed"]
        assert result["own"]["lost"].startswith("ValueError: No checkpoint in ")
        assert "; rank 1's node has none. Copy one to the nodes that lack it" in result["own"]["lost"]


@pytest.mark.parametrize(
    ("case", "messages"),
    [
        ("not shared", ("rank 1 does not see the files of rank 0", "save_on_each_node=True")),
        ("crowded", ("ranks [0, 1], each the first of a node, would write the same", "save_on_each_node=False")),
        ("learning rate", ("on rank 1 training.learning_rate is 0.2 instead of 0.1.",)),
        ("logging", ("on rank 1 training.logging_steps is 3 instead of 2.",)),
        ("seed", ("mixture.planner.seed is 1 instead of 0", "training.seed is 1 instead of 0")),
        ("resume", ("on rank 1 train() is 'resumes' instead of 'begins'.",)),
        ("order", ("on rank 1 streams is ['c', 'b', 'a'] instead of ['a', 'b', 'c'].",)),
        ("names", ("on rank 1 streams is ['c1', 'b1', 'a1'] instead of ['a0', 'b0', 'c0'].",)),
        ("buffer", ("ranks [0, 1], each the first of a node", "on each node's own disk")),
        ("mixture", ("on rank 1 mixture.weights.manual is [",)),
    ],
)
def test_what_cannot_go_well_ends_in_the_same_error_on_both(
    results: list[dict[str, Any]], case: str, messages: tuple[str, ...]
) -> None:
    first, second = (result["refusals"][case] for result in results)
    assert first.startswith("ValueError: ")
    for message in messages:
        assert message in first
        assert message in second


def test_a_buffer_on_the_disk_of_each_node_is_no_error(results: list[dict[str, Any]]) -> None:
    assert [result["refusals"]["own buffer"] for result in results] == ["no error"] * 2
