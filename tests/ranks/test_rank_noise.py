"""Signal and noise of the gradient on two ranks."""

from pathlib import Path
from typing import Any

import pytest

from mixer import Ledger
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.rank_noise_worker import DDP_OPTIONS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rank-noise")
    launch_warm("rank_noise_worker.py", path)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "rank-noise")


@pytest.mark.parametrize("options", DDP_OPTIONS)
def test_it_is_the_estimate_by_each_sample_s_gradient(results: list[dict[str, Any]], options: str) -> None:
    for result in results:
        assert max(result["under_ddp"][options]) < 1e-5


def test_a_schedule_sees_it_before_clipping_whatever_the_ranks_have(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert max(result["trained"]["differences"]) < 1e-4
    first, second = (result["trained"]["counts"] for result in results)
    assert any(own[0] != other[0] for own, other in zip(first, second, strict=True))
    assert max(num_micro for _, num_micro in first) > 2


def test_both_ranks_decide_alike(results: list[dict[str, Any]], folder: Path) -> None:
    first, second = (result["trained"] for result in results)
    for part in ("shown", "clock", "schedule", "weights"):
        assert first[part] == second[part]
    assert Ledger(folder / "trained" / "ledger").clock()["batch_size"].nunique() > 1


def test_nothing_of_it_is_left_after_the_run(results: list[dict[str, Any]]) -> None:
    assert all(result["trained"]["is_over"] and result["trained"]["num_hooks"] == 0 for result in results)


def test_a_step_that_is_repeated_in_smaller_micro_batches(results: list[dict[str, Any]]) -> None:
    for result in results:
        repeated = result["repeated"]
        assert repeated["cap"] == 2
        for noise, expected in zip(repeated["halved"], repeated["undisturbed"], strict=True):
            assert noise == pytest.approx(expected, rel=1e-3)


def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(results: list[dict[str, Any]]) -> None:
    assert [result["resumed"] for result in results] == [[], []]
