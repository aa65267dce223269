"""Batch sizes that change on two ranks."""

from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger
from tests.published import EPOCHS, lines_of, write_model
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("batch-size")
    write_model(path / "script" / "model")
    launch_warm("batch_size_worker.py", path)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "batch-size")


@pytest.mark.parametrize("num_workers", ["0", "2"])
def test_the_published_example(results: list[dict[str, Any]], num_workers: str) -> None:
    first, second = (result["published"][num_workers] for result in results)
    assert [(round(coverage, 9), round(epoch, 9)) for coverage, epoch, _ in first["logs"][:14]] == [
        *[(0.2, 0.2), (0.4, 0.4), (0.6, 0.6), (0.8, 0.8), (1.0, 1.0)],
        *[(0.4, 1.4), (0.8, 1.8), (1.0, 2.0)],
        *[(0.4, 2.4), (0.8, 2.8), (1.0, 3.0)],
        *[(0.6, 3.6), (1.0, 4.0), (0.6, 4.6)],
    ]
    assert first["own_sizes"] == second["own_sizes"] == [*[1] * 5, *[2, 2, 1], *[2, 2, 1], *[3, 2], *[3, 2]]
    assert first["steps"] == second["steps"] == 15


@pytest.mark.parametrize("num_workers", ["0", "2"])
def test_the_published_example_where_the_last_batch_is_dropped(results: list[dict[str, Any]], num_workers: str) -> None:
    first, second = (result["dropping"][num_workers] for result in results)
    assert first["own_sizes"] == second["own_sizes"] == [*[1] * 5, *[2, 2], *[2, 2], *[2, 3], *[3]]
    # 10 + 8 + 8 + 10 + 6 samples of five times 10; the coverage is that of each epoch.
    assert [epoch for _, epoch, _ in first["logs"]][-1] == pytest.approx(4.2)
    assert [coverage for coverage, _, _ in first["logs"]] == pytest.approx(
        [*[0.2, 0.4, 0.6, 0.8, 1.0], *[0.4, 0.8], *[0.4, 0.8], *[0.4, 1.0], 0.6]
    )


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_published_script_shows_its_coverage_epochs_and_sizes(
    results: list[dict[str, Any]], drop_last: bool
) -> None:
    for result in results:
        shown = result["script"][str(drop_last)]
        assert shown["lines"] == [pytest.approx(line) for line in lines_of(2, drop_last)]
        assert shown["rows"] == [rows for epoch in EPOCHS[2, drop_last] for rows in epoch]


def test_a_size_that_one_rank_sets_alone_is_refused_on_both(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "DisagreementError: The ranks planned different steps" in result["by_hand"][0]


def test_each_rank_needs_a_sample(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "1 samples in all are fewer than the 2 ranks" in result["by_hand"][1]


def test_what_is_no_size_is_refused_with_the_step(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert all("batch-size function at step 2: expected a whole number" in m for m in result["wrong_sizes"])
        assert [message.split("got ")[1].split(";")[0] for message in result["wrong_sizes"]] == [
            "0",
            "-1",
            "nan",
            "1.5",
        ]


def test_both_ranks_decide_alike(results: list[dict[str, Any]], folder: Path) -> None:
    assert results[0]["schedules_agree"] == results[1]["schedules_agree"]
    clock = Ledger(folder / "schedules_agree" / "ledger").clock()
    assert clock["batch_size"].nunique() > 3
    assert clock["samples"].tolist()[-1] == 3 * 74
