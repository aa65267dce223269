"""Loops without the Trainer, on two ranks under accelerate."""

import itertools
from typing import Any

import pytest
from accelerate import Accelerator

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.standalone_worker import NUM_EPOCHS, NUM_SAMPLES, by_loader, train

LOOPS = ("sampler", "loader", "loader_with_workers")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("standalone")
    launch_warm("standalone_worker.py", path, timeout_seconds=200)
    return results_of(path, "standalone")


@pytest.mark.parametrize("loop", LOOPS)
def test_the_ranks_together_see_every_sample_once_an_epoch(results: list[dict[str, Any]], loop: str) -> None:
    for epoch in range(NUM_EPOCHS):
        parts = [result[loop]["seen"][epoch] for result in results]
        assert sorted(itertools.chain(*parts)) == list(range(NUM_SAMPLES))
        assert all(parts)
    assert sum(result[loop]["num_paddings"] for result in results) > 0


@pytest.mark.parametrize("loop", LOOPS)
def test_the_weights_agree_and_are_those_of_one_process(results: list[dict[str, Any]], loop: str) -> None:
    assert results[0][loop]["weights"] == results[1][loop]["weights"]
    alone = train(Accelerator(cpu=True), by_loader(0, 1))
    assert results[0][loop]["weights"] == pytest.approx(alone["weights"], abs=1e-6)


def test_ranks_are_known_and_the_loader_needs_no_preparing(results: list[dict[str, Any]]) -> None:
    assert all(result["ranks_by_themselves"] for result in results)
    assert all(result["prepared_loader_is_the_same"] for result in results)
