"""Continual runs on two ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.tasks.test_continual import build, build_headed, data, end_of, new_model


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("continual")
    launch_warm("continual_worker.py", folder)
    return results_of(folder, "continual")


def test_killed_runs_of_two_ranks_end_as_one_that_was_not(results: list[dict[str, Any]]) -> None:
    assert [result["runs"]["different"] for result in results] == [[], []]


@pytest.mark.parametrize("name", ["none, fresh", "reservoir, kept", "herding, kept", "disk, fresh"])
def test_two_ranks_end_as_one(results: list[dict[str, Any]], name: str, tmp_path: Path) -> None:
    run = build(tmp_path, name)
    run.run()
    expected = end_of(run)
    first, second = (result["runs"]["ends"][name] for result in results)
    assert first == second
    assert np.abs(np.array(first["scores"]) - np.array(expected["scores"])).max() < 1e-6
    assert np.abs(np.array(first["weights"]) - np.array(expected["weights"])).max() < 1e-5
    if "entries" in expected:
        assert first["entries"] == expected["entries"]


def test_killed_runs_with_heads_of_their_own_end_as_ones_that_were_not(results: list[dict[str, Any]]) -> None:
    assert [result["heads"]["different"] for result in results] == [[], []]


@pytest.mark.parametrize("kind", ["growing, kept", "masked, payloads"])
def test_two_ranks_with_heads_of_their_own_end_as_one(results: list[dict[str, Any]], kind: str, tmp_path: Path) -> None:
    run = build_headed(tmp_path, kind)
    run.run()
    expected = end_of(run)
    first, second = (result["heads"]["ends"][kind] for result in results)
    assert first == second
    assert np.abs(np.array(first["weights"]) - np.array(expected["weights"])).max() < 1e-5


def test_samples_are_scored_once_each(results: list[dict[str, Any]]) -> None:
    logits, labels = new_model()(data().inputs).logits, torch.from_numpy(data().labels)
    allowed = logits + torch.tensor([0.0, float("-inf"), 0.0])
    is_one = labels == 1
    expected = [
        (logits.argmax(-1) == labels)[:37].double().mean(),
        (allowed.argmax(-1) == labels)[:37].double().mean(),
        (allowed.argmax(-1) == labels)[~is_one].double().mean(),
        1.0,
    ]
    for result in results:
        assert result["scores"] == pytest.approx([float(score) for score in expected], abs=1e-12)


def test_what_fails_on_one_rank_is_said_on_both_and_ends_neither(results: list[dict[str, Any]]) -> None:
    first, second = (result["failures"] for result in results)
    assert first["failures"] == second["failures"]
    assert len(first["failures"]) == 1
    assert first["failures"][0].startswith("rank 1: TypeError: ")
    assert first["scores"] == second["scores"]
    assert [row[1] for row in first["scores"]] == ["nan"] * 4
    assert "holds a continual run already" in first["refused"]
    assert second["refused"].startswith("RemoteError: rank 0 failed: ValueError")
