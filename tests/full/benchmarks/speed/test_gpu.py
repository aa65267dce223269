"""The benchmark for GPUs: its refusal without one, and a case on a CPU."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.speed import gpu


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


def test_a_case_runs_on_a_cpu() -> None:
    args = gpu.arguments(["--quick", "--case", "llama-125m"])
    args.device = "cpu"
    figures = gpu.measure(args)
    names = set(gpu.CASES["llama-125m"].contestants)
    assert figures["peak_bytes"].keys() == figures["milliseconds_per_step"].keys() == names
    assert figures["ratio"].keys() == names - {gpu.PLAIN, gpu.LOADING}
