from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import GradientRecorder
from tests.mixer.trainer.trl.cases import preferences, sft_mixture
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trl-ranks")
    launch_warm("trl_worker.py", path, timeout_seconds=600)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "results")


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_two_ranks_train_sft_trainer_as_one_process(
    name: str, folder: Path, results: list[dict[str, Any]], tmp_path: Path
) -> None:
    recorder = GradientRecorder()
    trainer = sft_mixture(tmp_path, name, per_device=64, callbacks=[recorder])
    trainer.train()
    assert 1 in trainer.ledger.timings()["total"].tolist()  # of which one of two ranks has nothing
    for rank in range(2):
        both = torch.load(folder / f"{name}-rank{rank}.pt")
        torch.testing.assert_close(both, torch.stack(recorder.gradients), rtol=0, atol=1e-6)
    alone = [entry for entry in trainer.state.log_history if "loss" in entry]
    for mine, theirs in zip(results[0]["gradients"][name], alone, strict=True):
        names = [key for key in theirs if key.startswith(("loss", "count/", "num_tokens"))]
        assert {"loss", "loss/a", "num_tokens"} <= {*names, "loss/a"}
        assert [mine[key] for key in names] == pytest.approx([theirs[key] for key in names], rel=1e-5)


@pytest.mark.full
def test_a_rank_without_samples_is_not_in_the_metrics_of_all(results: list[dict[str, Any]], tmp_path: Path) -> None:
    trainer = sft_mixture(tmp_path, "llama", per_device=64)
    trainer.train()
    alone = [entry for entry in trainer.state.log_history if "loss" in entry]
    single = trainer.ledger.timings()["total"].tolist().index(1)
    for key in ("entropy", "mean_token_accuracy"):
        assert results[0]["gradients"]["llama"][single][key] == pytest.approx(alone[single][key], rel=1e-5)


@pytest.mark.full
def test_two_ranks_go_on_to_the_bit(results: list[dict[str, Any]]) -> None:
    assert [result["resume"] for result in results] == [{"same": True}] * 2


@pytest.mark.full
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_two_ranks_train_pairs_as_one_process(
    kind: str, folder: Path, results: list[dict[str, Any]], tmp_path: Path
) -> None:
    recorder = GradientRecorder()
    trainer = preferences(tmp_path, kind, per_device=64, callbacks=[recorder])
    trainer.train()
    assert trainer.ledger.timings()["total"].tolist() == [5, 5, 1, 5]
    for rank in range(2):
        both = torch.load(folder / f"{kind}-rank{rank}.pt")
        torch.testing.assert_close(both, torch.stack(recorder.gradients), rtol=0, atol=1e-6)
    alone = [entry for entry in trainer.state.log_history if "loss" in entry]
    for mine, theirs in zip(results[0]["pairs"][kind], alone, strict=True):
        names = [key for key in theirs if key.startswith(("loss", "count/", "num_tokens"))]
        assert [mine[key] for key in names] == pytest.approx([theirs[key] for key in names], rel=1e-5)
    # Of one pair both see the same, although two ranks have run it.
    name = "rewards/margins" if kind == "dpo" else "margin"
    assert results[0]["pairs"][kind][2][name] == pytest.approx(alone[2][name], rel=1e-4, abs=1e-7)


@pytest.mark.full
def test_rows_of_ranks_in_unequal_numbers_are_gathered(results: list[dict[str, Any]]) -> None:
    first, second = [[0.0, 1.0]], [[0.0, 1.0], [2.0, 3.0]]
    for rank, own in enumerate((first, second)):
        total = sum(map(sum, own))
        expected = [[*first, *second], [1.0, 6.0], second, [6.0], own, [total]]
        assert results[rank]["pairs"]["gathered"] == expected
