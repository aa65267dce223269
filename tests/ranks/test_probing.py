"""Probed runs on two ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.probing_worker import CASES


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("probing")
    launch_warm("probing_worker.py", folder)
    return results_of(folder, "probing")


@pytest.mark.parametrize("name", CASES)
def test_both_find_what_a_backward_for_each_sample_of_both_finds(results: list[dict[str, Any]], name: str) -> None:
    first, second = (result["trained"][name] for result in results)
    assert first["problem"] == ""
    assert first == second


def test_some_micro_batches_had_no_samples_on_a_rank(results: list[dict[str, Any]]) -> None:
    assert {name for name, found in results[0]["trained"].items() if found["has_paddings"]} >= {"one stream each"}


def test_training_is_the_same_with_and_without(results: list[dict[str, Any]]) -> None:
    assert max(result["same_training"] for result in results) < 1e-6


def test_a_step_that_is_repeated_in_smaller_micro_batches_is_measured_once(results: list[dict[str, Any]]) -> None:
    assert [result["repeated"] for result in results] == [{"problem": "", "cap": 2}] * 2


def test_runs_go_on_from_a_checkpoint_as_if_they_had_never_stopped(results: list[dict[str, Any]]) -> None:
    assert [result["resumed"] for result in results] == [[], []]


def test_an_exact_probe_of_two_ranks_is_refused_at_construction(results: list[dict[str, Any]]) -> None:
    message = (
        "ValueError: probe.mode='exact' measures the gradient of one micro-batch on one rank, but there are 2 ranks"
    )
    assert all(result["refused"].startswith(message) for result in results)
