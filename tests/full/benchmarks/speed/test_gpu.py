"""The benchmark for GPUs: its refusal without one, and its cases on a CPU."""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.speed import gpu
from tests.ranks.engines import as_on_gpus
from tests.ranks.launch import by_torchrun


def on_cpu(case: str) -> argparse.Namespace:
    args = gpu.arguments(["--quick", "--case", case])
    args.device = "cpu"
    return args


def test_without_a_gpu_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"python -m benchmarks overhead, probe and data_path"):
        gpu.main(["--quick"])


def test_each_case_has_a_process_for_each_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[str]] = []

    def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        started.append(command)
        Path(command[command.index("--json", -2) + 1]).write_text("{}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(subprocess, "run", run)
    gpu.main(["--quick", "--json", str(tmp_path / "all.json")])
    assert [command[command.index("--case") + 1] for command in started] == list(gpu.CASES)
    assert all("--nproc_per_node=4" in command for command in started)
    assert json.loads((tmp_path / "all.json").read_text()).keys() == {"hardware", *gpu.CASES}


@pytest.mark.parametrize("case", ["llama-125m", "llama-1b-lora"])
def test_its_cases_run_on_a_cpu(case: str) -> None:
    figures = gpu.measure(on_cpu(case))
    names = set(gpu.CASES[case].contestants)
    assert figures["peak_bytes"].keys() == figures["milliseconds_per_step"].keys() == names
    assert figures["ratio"].keys() == names - {gpu.PLAIN, gpu.LOADING}


def by_fsdp(_: Path) -> dict[str, Any]:
    with as_on_gpus():
        return gpu.measure(on_cpu("fsdp2"))


def test_sharded_models_run_on_cpus(tmp_path: Path) -> None:
    for rank in by_torchrun(tmp_path, by_fsdp):
        assert rank["by_fsdp"]["num_devices"] == 2
