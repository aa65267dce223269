"""Replay's methods on two ranks: what one rank does, to rounding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from replay.feeding.features import extract_features
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.replay_methods_worker import CASES, FAILING, SMALL, found_in, run
from tests.replay.methods.runs import Classifier, Points

SCENARIOS = ("same", "repeated", "resumed", "by_tokens", "features", "refusals", "failures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay_methods")
    launch_warm("replay_methods_worker.py", path, *SCENARIOS)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "replay_methods")


def _loaded(folder: Path, scenario: str, name: str) -> list[dict[str, torch.Tensor]]:
    return [torch.load(folder / f"{scenario}-{name}-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_do_what_one_does(name: str, folder: Path, tmp_path: Path) -> None:
    expected = found_in(run(tmp_path, name))
    first, second = _loaded(folder, "same", name)
    assert torch.equal(first["weights"], second["weights"])
    # A language model's loss is in single precision.
    tolerance = 1e-7 if name.endswith("tokens") else 1e-12
    torch.testing.assert_close(first["weights"], expected["weights"], rtol=0, atol=tolerance)
    torch.testing.assert_close(first["terms"], expected["terms"], rtol=1e-5, atol=1e-8)
    for key in ("numbers", "number", "task", "label"):
        assert torch.equal(first[key], second[key]), key
        assert torch.equal(first[key], expected[key]), key
    if name in ("A-GEM", "A-GEM on two sides"):
        assert first["numbers"].max() == 1.0
    if name.startswith("DER"):
        assert first["terms"].max() > 0


@pytest.mark.parametrize("name", ["DER", "DER++", "A-GEM"])
def test_a_step_that_is_repeated_on_both_ranks_comes_out_the_same(name: str, folder: Path) -> None:
    undisturbed = _loaded(folder, "same", name)[0]
    for found in _loaded(folder, "repeated", name):
        torch.testing.assert_close(found["weights"], undisturbed["weights"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_resumed_runs_go_on_to_the_bit(name: str, folder: Path) -> None:
    for whole, found in zip(_loaded(folder, "same", name), _loaded(folder, "resumed", name), strict=True):
        for key in ("weights", "number", "task", "label"):
            assert torch.equal(found[key], whole[key]), key


def test_micro_batches_by_tokens(results: list[dict[str, Any]]) -> None:
    first, second = (result["by_tokens"] for result in results)
    assert first == second
    assert set(first) == {"DER", "MIR"}


def test_features_of_all_on_each_rank(results: list[dict[str, Any]]) -> None:
    expected = extract_features(Classifier(), Points(13))
    for result in results:
        np.testing.assert_allclose(np.array(result["features"]["all"]), expected, rtol=1e-6)
        np.testing.assert_allclose(
            np.array(result["features"]["one"]), extract_features(Classifier(), Points(1)), rtol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokens", "AGEM: with max_tokens_per_micro_batch some rank may have samples of memory alone"),
        (
            "sparse",
            "AGEM holds the gradient of memory against that of new samples, which cannot be told apart: module.table",
        ),
        ("each_batch", "AGEM averages the gradients of memory and of new samples once each, and sync_each_batch=True"),
        ("mir", "retrieval=MIR takes a gradient of new samples by itself, which cannot be done here: module.table"),
    ],
)
def test_what_cannot_be_done_is_refused_at_the_start(name: str, message: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["refusals"][name].startswith(f"ValueError: {message}"), result["refusals"][name]


def test_an_error_on_one_rank_ends_both(results: list[dict[str, Any]]) -> None:
    other, failed = (result["failures"] for result in results)
    assert failed.keys() == other.keys() == {*FAILING, "row"}
    for name, message in failed.items():
        assert other[name].startswith(f"RemoteError: rank 1 failed: {message.rstrip('.')}")
        assert message == "OSError: disk on fire" or name == "row"
    assert failed["row"].startswith("TypeError: sample: a builtins.set cannot be kept in a buffer")
