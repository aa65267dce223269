from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.quality.losses import LOSSES
from mixer import Ledger, MixingTrainer, Uniform
from tests.helpers import MODEL_DATA, GradientRecorder, Tokens, arguments, build_model, three_streams
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm

SCENARIOS = (
    "gradients",
    "own_loss",
    "kinds_of_loss",
    "turns",
    "stock_gradient",
    "disagreement",
    "failing_policy",
    "broken_sample",
    "nonfinite",
    "resume",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    launch_warm("worker.py", path, *SCENARIOS, timeout_seconds=600)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return results_of(folder, "results")


@pytest.mark.parametrize("name", MODEL_DATA)
def test_gradient_of_two_ranks_is_the_one_of_one_process(name: str, folder: Path, tmp_path: Path) -> None:
    recorder = GradientRecorder()
    trainer = MixingTrainer(
        model=build_model(name),
        args=arguments(tmp_path, per_device_train_batch_size=64, max_steps=6),
        train_dataset=three_streams(MODEL_DATA[name]),
        batch_size=9,
        mixing=Uniform(),
        callbacks=[recorder],
    )
    trainer.train()
    single = torch.stack(recorder.gradients)
    for rank in range(2):
        both = torch.load(folder / f"{name}-rank{rank}.pt")
        assert both.abs().max() > 1e-3
        torch.testing.assert_close(both, single, rtol=0, atol=1e-6)
    # Five steps of an epoch of 37 samples: four of 9, and one sample left for two ranks.
    assert trainer.ledger.timings()["total"].tolist() == [9, 9, 9, 9, 1, 9]


@pytest.mark.parametrize("name", MODEL_DATA)
def test_ledger_of_two_ranks_is_the_one_of_one_process(name: str, folder: Path, tmp_path: Path) -> None:
    trainer = MixingTrainer(
        model=build_model(name),
        args=arguments(tmp_path, per_device_train_batch_size=64, max_steps=6),
        train_dataset=three_streams(MODEL_DATA[name]),
        batch_size=9,
        mixing=Uniform(),
    )
    trainer.train()
    single, both = trainer.ledger.to_pandas(), Ledger(folder / name / "ledger").to_pandas()
    pd.testing.assert_frame_equal(single.drop(columns="loss"), both.drop(columns="loss"))
    pd.testing.assert_series_equal(single["loss"], both["loss"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODEL_DATA)
def test_sum_over_streams_is_the_backpropagated_loss(name: str, folder: Path, results: list[dict[str, Any]]) -> None:
    rows = Ledger(folder / name / "ledger").to_pandas()
    rows["sum"] = rows["loss"].fillna(0.0) * rows["items"]
    steps = rows.groupby("step")
    # The Trainer does not know that this head shifts its labels, and divides by the first of each row too.
    divided_by = steps["items"].sum() + (steps["count"].sum() if name == "gpt2" else 0)
    expected = (steps["sum"].sum() / divided_by).tolist()
    assert results[0]["gradients"][name] == pytest.approx(expected, abs=1e-6)


def test_a_loss_that_leaves_out_the_number_of_ranks_is_scaled_right(
    results: list[dict[str, Any]], tmp_path: Path
) -> None:
    recorder = GradientRecorder()
    MixingTrainer(
        build_model("bert-classifier"),
        arguments(tmp_path, per_device_train_batch_size=64, max_steps=1),
        train_dataset=three_streams("sequence-classification"),
        batch_size=9,
        callbacks=[recorder],
    ).train()
    assert results[0]["own_loss"] == pytest.approx(float(recorder.gradients[0].norm()), abs=1e-6)


def test_losses_of_every_kind_have_the_gradient_of_the_whole_batch(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert len(result["kinds_of_loss"]) == sum(is_exact for _, is_exact in LOSSES.values())
        assert {name: error for name, error in result["kinds_of_loss"].items() if error > 2e-6} == {}


def test_losses_in_turns_are_those_of_one_process(results: list[dict[str, Any]], folder: Path, tmp_path: Path) -> None:
    data = Tokens(60, 1, "sequence-classification")
    streams = {f"s{k}": [data[3 * k + i] for i in range(3)] for k in range(20)}
    args = arguments(tmp_path, per_device_train_batch_size=64, max_steps=3, learning_rate=0.0)
    single = MixingTrainer(build_model("bert-classifier"), args, train_dataset=streams, batch_size=20)
    single.train()
    assert results[0]["turns"]["losses"] == pytest.approx(
        [entry["loss"] for entry in single.state.log_history if "loss" in entry], abs=1e-5
    )
    rows, alone = Ledger(folder / "turns" / "ledger").to_pandas(), single.ledger.to_pandas()
    measured = rows["loss"].notna()
    assert rows[measured].groupby("step").size().tolist() == [16] * 3
    np.testing.assert_allclose(rows["loss"][measured], alone["loss"][measured], atol=1e-5)
    # Each rank's own rows, and one in a micro-batch that only keeps it in step.
    assert all(30 <= result["turns"]["num_rows"] < 30 + 3 * 20 for result in results)


def test_stock_gradient_is_too_large_by_the_number_of_ranks(results: list[dict[str, Any]]) -> None:
    assert results[0]["stock_gradient"] == pytest.approx(2.0, abs=1e-4)


def test_ranks_that_disagree_end_in_an_error_on_all(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["disagreement"].startswith("DisagreementError")
        assert "rank 0: step 3" in result["disagreement"]
        assert "rank 1: step 3" in result["disagreement"]


def test_a_policy_that_fails_on_one_rank_ends_in_an_error_on_all(results: list[dict[str, Any]]) -> None:
    told = "ValueError: no idea. Raised by the policy Function at step 2."
    assert results[0]["failing_policy"] == f"RemoteError: rank 1 failed: {told}"
    assert results[1]["failing_policy"] == "ValueError: no idea"


def test_a_sample_that_fails_on_one_rank_ends_in_an_error_on_all(results: list[dict[str, Any]]) -> None:
    messages = [result["broken_sample"] for result in results]
    assert all("Stream 'bad': sample 7 could not be loaded: OSError: disk on fire" in message for message in messages)
    assert sorted(message.split(":")[0] for message in messages) == ["RemoteError", "SampleError"]


def test_a_loss_that_is_not_finite_skips_or_raises_on_all_ranks(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["nonfinite"]["skip"]
        assert result["nonfinite"]["raise"].startswith("NonFiniteLossError: Step 1: the loss of ['bad']")


def test_resuming_gives_the_same_weights_to_the_bit(results: list[dict[str, Any]]) -> None:
    assert all(result["resume"] for result in results)
