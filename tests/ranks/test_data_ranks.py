"""Streams of files on two ranks: tokenised once, divided alike, and an error on one ends both."""

from typing import Any

import pytest

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("data")
    rows = [f'{{"text": "row {number}", "kind": "{"ab"[number % 4 == 0]}"}}\n' for number in range(40)]
    (folder / "rows.jsonl").write_text("".join(rows))
    launch_warm("data_worker.py", folder)
    return results_of(folder, "data")


def test_both_have_the_same_rows_held_out(results: list[dict[str, Any]]) -> None:
    first, second = results
    assert (len(first["train"]), len(first["validation"])) == (30, 10)
    assert (first["train"], first["validation"]) == (second["train"], second["validation"])


def test_only_the_first_makes_samples(results: list[dict[str, Any]]) -> None:
    assert [rank["calls"] for rank in results] == [["30", "10"]] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_on_one_ends_both(results: list[dict[str, Any]], rank: int) -> None:
    own, other = results[rank][f"missing on {rank}"], results[1 - rank][f"missing on {rank}"]
    assert own.startswith("FileNotFoundError: streams.missing.data: there is no file or folder")
    assert other.startswith(
        f"ValueError: rank {rank} failed: FileNotFoundError: streams.missing.data: there is no file"
    )
