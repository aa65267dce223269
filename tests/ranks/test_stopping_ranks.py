from pathlib import Path
from typing import Any

import pytest

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm, run_warm


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("stopping")
    launch_warm("stopping_worker.py", folder)
    return results_of(folder, "results")


def test_a_signal_to_one_rank_ends_both_at_the_same_step_and_nothing_is_lost(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["one"] == ["RunTerminated", "SIGTERM ended the run after step 5", 5]
        assert result["differs"] == []


def test_a_signal_to_both_is_one(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["all"] == ["RunInterrupted", "SIGINT ended the run after step 5", 5]


def test_what_a_callback_asks_for_on_one_rank_all_ranks_do(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["stopped"] == 3
        assert result["saved"]
        assert result["evaluated"] == [0, 2, 3, 4]
        assert result["late"] == 2


def test_a_full_disk_ends_both_ranks_with_what_is_safe_and_both_go_on(results: list[dict[str, Any]]) -> None:
    first, second = (result["full"] for result in results)
    assert first.startswith("WriteError: [Errno 28] ")
    assert second.startswith("RemoteError: rank 0 failed: WriteError: [Errno 28] ")
    for told in (first, second):
        assert "checkpoint-4, its optimizer, could not be written (No space left on device: " in told
        assert "full/checkpoint-2 with --resume auto" in told
    assert [(result["goes on from"], result["ends"]) for result in results] == [(2, 6), (2, 6)]


def test_the_error_of_one_rank_is_told_by_the_one_that_waits_for_it(tmp_path: Path) -> None:
    codes, output = run_warm("stopping_worker.py", tmp_path, "backward")
    assert codes == [0, 1], output[-4000:]
    told = (tmp_path / "backward-0.txt").read_text()
    assert told == "RemoteError: rank 1 failed in step 4: ValueError: a broken callback"


def test_a_rank_that_stays_away_is_waited_for_as_long_as_is_said(tmp_path: Path) -> None:
    codes, output = run_warm("stopping_worker.py", tmp_path, "late", timeout_seconds=60)
    assert codes[0] == 0, output[-4000:]
    told = (tmp_path / "late-0.txt").read_text()
    assert told.startswith(
        "TimeoutError: Rank 0 waited 6 seconds (ddp_timeout) for others in step 4. Nothing was heard of rank 1"
    )


def test_evaluation_sets_of_different_length_are_refused_on_both_ranks(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["uneven"].startswith(
            "ValueError: The evaluation set has different lengths on the ranks, which would wait for each other: "
            "4 on rank 0, 5 on rank 1."
        )
        assert result["even"] == "no error"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("exit", "rank 0 failed in step 3: SystemExit: no more"),
        ("vanish", "rank 0 ended without a word in step 3: by os._exit"),
        ("make", "rank 0 failed while the trainer was constructed: ValueError: "),
    ],
)
def test_the_rank_that_keeps_the_store_is_named_though_it_takes_that_with_it(
    kind: str, told: str, tmp_path: Path
) -> None:
    codes, output = run_warm("stopping_worker.py", tmp_path, kind, timeout_seconds=60, by_hand=True)
    assert (tmp_path / f"{kind}-1.txt").read_text().startswith(f"RemoteError: {told}"), output[-4000:]
    assert codes[1] == 0
