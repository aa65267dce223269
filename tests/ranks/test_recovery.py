"""Memory that runs out on one of two ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm, run_warm

SCENARIOS = ("undisturbed", "repeated", "experts", "iterable_by_tokens", "failures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recovery")
    launch_warm("recovery_worker.py", path, *SCENARIOS)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "recovery")


@pytest.mark.parametrize("name", ["forward", "training", "backward"])
def test_gradients_and_weights_are_those_of_the_undisturbed_run(name: str, folder: Path) -> None:
    gradients, weights = torch.load(folder / "undisturbed-0.pt")
    assert gradients.abs().max() > 1e-3
    for rank in range(2):
        own_gradients, own_weights = torch.load(folder / f"{name}-{rank}.pt")
        torch.testing.assert_close(own_gradients, gradients, rtol=0, atol=1e-6)
        torch.testing.assert_close(own_weights, weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["forward", "training", "backward"])
def test_the_step_is_repeated_and_later_ones_run_synchronised(name: str, results: list[dict[str, Any]]) -> None:
    first, second = (result["repeated"][name] for result in results)
    assert first["totals"] == [9, 9, 9, 9, 1, 9]
    assert first["cap"] == second["cap"] == 2
    # Five rows at most on a rank fit into three micro-batches; the first step, and the one after it, are armed.
    assert first["num_armed"] == second["num_armed"] == 2
    batches = [2, 2, 1] * 4 + [1] + [2, 2, 1]
    tried = {"forward": [], "training": [5], "backward": [5]}[name]
    assert first["rows"][len(tried) :] == batches
    assert first["rows"][: len(tried)] == tried


def test_gradients_on_one_rank_only_count_and_statistics_are_put_back(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["experts"]["difference"] < 1e-6
        assert result["experts"]["same_statistics"]
        assert result["experts"]["unused_is_none"]


def test_rows_that_come_once_are_cut_anew_by_tokens(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["iterable_by_tokens"]["difference"] < 1e-6
        assert result["iterable_by_tokens"]["cap"] < 48


def test_errors_of_one_rank_end_both(results: list[dict[str, Any]]) -> None:
    first, second = (result["failures"] for result in results)
    for name, message in (
        ("no_sample_fits", "Step 1 ran out of memory on rank 1 with a single sample"),
        ("probe_without_recovery", "Set per_device_train_batch_size=2, with batch_size=9"),
    ):
        assert all(result[name].startswith("MicroBatchMemoryError") for result in (first, second))
        assert all(message in result[name] for result in (first, second))
    for name in ("other_error", "other_error_of_a_probe"):
        assert first[name].startswith("RemoteError: rank 1 failed: KeyError: 'lost'. In a micro-batch")
    assert second["other_error"] == second["other_error_of_a_probe"] == "KeyError: 'lost'"
    assert first["other_error_of_a_backward"].startswith("RemoteError: rank 1 failed: ValueError: bad")
    assert second["other_error_of_a_backward"] == "ValueError: bad"


def test_a_closed_window_ends_both_ranks_with_the_cap_to_set(tmp_path: Path) -> None:
    codes, _ = run_warm("recovery_worker.py", tmp_path, "closed_window")
    assert all(codes)
    for rank in range(2):
        message = (tmp_path / f"closed-{rank}.txt").read_text()
        assert message.startswith("MicroBatchMemoryError: Step 4 ran out of memory on rank 1"), message
        assert "Set per_device_train_batch_size=2, with batch_size=8" in message
