"""The scripts, each in a short run, by what they leave."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mixer import Ledger, MultiTaskModel
from tasks.metrics.score_matrix import ScoreMatrix
from tests.tasks.data import write_intents

Run = Callable[..., None]
QUIET = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_steps": 5}


def _counts(folder: Path) -> dict[str, int]:
    counts: dict[str, int] = Ledger(folder / "ledger").to_pandas().groupby("stream")["count"].sum().to_dict()
    return counts


def _changes(printed: str) -> dict[str, tuple[float, float]]:
    """Reads lines such as `numpy: loss 5.916 -> 5.342`."""
    found = re.findall(r"(?m)^(\w+): loss ([\d.]+) -> ([\d.]+)", printed)
    return {name: (float(before), float(after)) for name, before, after in found}


def test_three_tasks_are_learned_by_one_encoder(world: Path, run_script: Run) -> None:
    options: dict[str, Any] = {**QUIET, "do_train": True, "do_eval": True, "output_dir": "out"}
    run_script("multi_task_classification", **options, max_steps=60, learning_rate=5e-3)
    results = json.loads((world / "out/all_results.json").read_text())
    for name, chance in {"topic": 0.3, "language": 1 / 3, "domain": 0.1}.items():
        assert results[f"eval_{name}_accuracy"] > chance + 0.25
    assert _counts(world / "out") == {"topic": 960, "language": 960, "domain": 960}  # a third of 60 x 48 each
    model = MultiTaskModel.from_pretrained(world / "out")
    assert {name: head.head.num_labels for name, head in model.heads.items()} == {
        "topic": 5,
        "language": 3,
        "domain": 10,
    }


def test_adapters_are_tuned_on_three_chats(world: Path, run_script: Run, capsys: pytest.CaptureFixture[str]) -> None:
    lora = {"use_peft": True, "lora_target_modules": "all-linear", "bf16": False}
    run_script("chat_lora", **QUIET, **lora, output_dir="out", max_steps=30, learning_rate=1e-2)
    changes = _changes(capsys.readouterr().out)
    assert list(changes) == ["numpy", "pandas", "torch"]
    assert all(after < before - 0.02 for before, after in changes.values())
    counts = _counts(world / "out")
    assert sum(counts.values()) == 30 * 16
    sizes = {"numpy": 496, "pandas": 425, "torch": 633}
    roots = {name: size**0.3 for name, size in sizes.items()}  # the policy flattens what the sizes are
    for name, count in counts.items():
        assert count / 480 == pytest.approx(roots[name] / sum(roots.values()), abs=0.01)
    assert all("lora_" in name for name in load_file(world / "out/adapter_model.safetensors"))
    base = AutoModelForCausalLM.from_pretrained("data/examples/base")
    assert PeftModel.from_pretrained(base, world / "out").peft_config["default"].r == 16


def test_a_twentieth_of_the_old_is_replayed(world: Path, run_script: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run_script("continued_pretraining", **QUIET, output_dir="out", block_size=64, max_steps=20, learning_rate=5e-3)
    printed = capsys.readouterr().out
    changes = _changes(printed)
    assert changes["new"][1] < changes["new"][0] - 0.5
    assert _counts(world / "out") == {"new": 20 * 19, "old": 20}
    assert "20 samples (5.0%)" in printed
    rows = Ledger(world / "out/ledger").to_pandas()
    assert rows[rows["stream"] == "old"]["count"].eq(1).all()  # one in every step of twenty
    results = json.loads((world / "out/eval_results.json").read_text())
    assert results["eval_new_loss"] == pytest.approx(changes["new"][1], abs=1e-3)


def test_a_buffer_keeps_intents_in_mind(world: Path, run_script: Run, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_intents(world / "data2", {"bank": ["pay", "owe"], "trip": ["fly", "stay"]}, num_train=40, num_test=10)
    options: dict[str, Any] = {**QUIET, "learning_rate": 5e-3, "lr_scheduler_type": "constant", "save_strategy": "no"}
    for capacity in (0, 40):
        run_script(
            "class_incremental_intents",
            **options,
            data_folder=data,
            capacity=capacity,
            num_train_epochs=4,
            output_dir=f"out{capacity}",
        )
    without, replayed = (ScoreMatrix.from_file(world / f"out{capacity}/scores.json") for capacity in (0, 40))
    assert np.diag(replayed.scores[1:]).min() > 0.9
    assert replayed.scores[2, 0] > without.scores[2, 0] + 0.3
    assert f"average accuracy {replayed.scores[2].mean():.3f}" in capsys.readouterr().out
    rows = Ledger(world / "out40/02-trip/ledger").to_pandas()
    assert rows.groupby("stream")["count"].sum().eq(4 * 80).all()  # as many are replayed as are new


def test_the_batch_size_ramps_up_over_tokens(world: Path, run_script: Run, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"initial": 4, "final": 16, "ramp_tokens": 20_000, "micro_batch": 4, "block_size": 64}
    run_script("batch_size_ramp", output_dir="out", tokens=40_000, **sizes)
    clock = Ledger(world / "out/ledger").clock()
    size = clock["batch_size"]
    assert size.iloc[0] == 4
    assert size.is_monotonic_increasing
    assert size[clock["tokens"].shift(fill_value=0) >= 20_000].eq(16).all()
    assert 40_000 <= clock["tokens"].iloc[-1] < 40_000 + 16 * 64
    logged = re.findall(r"loss ([\d.]+)  lr", printed := capsys.readouterr().out)
    assert float(logged[-1]) < float(logged[0]) - 0.5
    assert len(re.findall(r"(?m)^ +\d+ +\d+ +\d+ +[\d.]+$", printed)) >= 8
    AutoTokenizer.from_pretrained(world / "out")
    AutoModelForCausalLM.from_pretrained(world / "out")


def test_an_own_loop_goes_on_with_the_very_next_batch(world: Path, run_script: Run) -> None:
    sizes = {"save_steps": 6, "batch_size": 16}
    run_script("own_loop", output_dir="whole", steps=12, **sizes)
    run_script("own_loop", output_dir="parts", steps=6, **sizes)
    run_script("own_loop", output_dir="parts", steps=12, **sizes)
    whole, parts = (torch.load(world / name / "checkpoint.pt") for name in ("whole", "parts"))
    assert parts["step"] == 12
    assert parts["sampler"] == whole["sampler"]
    for name, tensor in whole["model"].items():
        assert torch.equal(parts["model"][name], tensor), name


def test_an_own_loop_takes_a_policy_that_reads_losses(
    world: Path, run_script: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script("own_loop", output_dir="out", steps=6, save_steps=6, batch_size=16, mixing="LossChange")
    seen = [int(number) for number in re.findall(r"(\d+) rows", capsys.readouterr().out)]
    assert sum(seen) == 6 * 16
    assert min(seen) > 0


def test_two_robots_give_half_of_every_batch(world: Path, run_script: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run_script("robotics", output_dir="out", steps=60)
    changes = _changes(printed := capsys.readouterr().out)
    assert list(changes) == ["recorded", "simulated"]
    assert all(after < before for before, after in changes.values())
    assert re.findall(r"(\d+) rows", printed) == ["960", "960"]
    assert json.dumps(torch.load(world / "out" / "checkpoint.pt")["loader"])


def test_a_folder_is_repeated_without_copies(world: Path, run_script: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for name, number in {"10_mug": 2, "1_scene": 12}.items():
        (world / "pictures" / name).mkdir(parents=True)
        for place in range(number):
            Image.new("RGB", (20, 24), (20 * place, 90, 200)).save(world / "pictures" / name / f"{place}.png")
    options: dict[str, Any] = {"folder": "pictures", "base_steps": 2, "steps": 8}
    run_script("diffusion_lora", **options, output_dir="out")
    run_script("diffusion_lora", **options, output_dir="half", share="mug=0.5")
    seen = [int(number) for number in re.findall(r"(\d+) pictures", capsys.readouterr().out)]
    assert seen == [80, 48, 64, 64]  # of 8 x 16: 20 to 12, and half
    assert all("lora_" in name for name in load_file(world / "out/adapter_model.safetensors"))
