"""Loops without the Trainer, on two ranks under accelerate."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from tests.distributed.standalone_worker import NUM_EPOCHS, NUM_SAMPLES, by_loader, train

ROOT = Path(__file__).parents[2]
LOOPS = ("sampler", "loader", "loader_with_workers")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("standalone")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [*command, str(Path(__file__).with_name("standalone_worker.py")), str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    return [json.loads((path / f"standalone-{rank}.json").read_text()) for rank in range(2)]


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
