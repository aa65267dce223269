"""Aggregated gradients on two ranks: what one rank does, to rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.aggregation_worker import CASES, found_in, run

pytest.importorskip("torchjd")

SCENARIOS = ("same", "repeated", "resumed", "other_devices", "failures", "refusals")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aggregation")
    launch_warm("aggregation_worker.py", path, *SCENARIOS)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "aggregation")


def _loaded(folder: Path, scenario: str, name: str) -> list[dict[str, torch.Tensor]]:
    return [torch.load(folder / f"{scenario}-{name}-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_do_what_one_does(name: str, folder: Path, tmp_path: Path) -> None:
    expected = found_in(run(tmp_path, name))
    first, second = _loaded(folder, "same", name)
    assert torch.equal(first["weights"], second["weights"])
    # A solver that stops when it is near enough makes more of rounding.
    tolerance = 1e-7 if name == "nash-mtl" else 1e-11
    for key, values in expected.items():
        torch.testing.assert_close(first[key], values, rtol=1e-5, atol=tolerance, msg=key)
    torch.testing.assert_close(first["weights"], expected["weights"], rtol=0, atol=tolerance)
    assert float(first["conflicts"].max()) == 1.0


def test_a_step_that_is_repeated_on_both_ranks_comes_out_the_same(folder: Path) -> None:
    undisturbed = _loaded(folder, "same", "pcgrad")[0]
    for found in _loaded(folder, "repeated", "pcgrad"):
        torch.testing.assert_close(found["weights"], undisturbed["weights"], rtol=0, atol=1e-12)


def test_resumed_runs_go_on_to_the_bit(folder: Path) -> None:
    for whole, found in zip(_loaded(folder, "same", "pcgrad"), _loaded(folder, "resumed", "pcgrad"), strict=True):
        for key, values in whole.items():
            assert torch.equal(found[key], values), key


def test_ranks_whose_devices_multiply_differently_stay_together(folder: Path, results: list[dict[str, Any]]) -> None:
    first, second = (result["other_devices"]["weights"] for result in results)
    assert first == second == _loaded(folder, "same", "mgda")[0]["weights"].tolist()


def test_a_rank_that_finds_no_weights_ends_all(results: list[dict[str, Any]]) -> None:
    assert results[1]["failures"]["weights"] == "ValueError: no way out"
    assert results[0]["failures"]["weights"].startswith("RemoteError: rank 1 failed: ValueError: no way out")


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("tokens", "conflict=upgrad: with max_tokens_per_micro_batch ranks may end a step with different streams"),
        ("sparse", "conflict=upgrad needs a separate gradient per stream, which is not possible here: module.table"),
        ("ignored", "which is not possible here: DDP does not average 1 of its parameters"),
        ("each_batch", "conflict=upgrad averages the gradient of each stream once, but sync_each_batch=True"),
        ("noise", "batch_size=NoiseScale compares the gradients of the ranks"),
    ],
)
def test_what_is_refused(case: str, message: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        assert message in result["refusals"][case]
