"""The benchmark for GPUs: its refusal without one, and its parts on a CPU."""

import subprocess

import pytest
import torch

from benchmarks.speed import gpu


def test_without_a_gpu_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"sees no GPU .* python -m benchmarks overhead, probe and data_path"):
        gpu.main(["--quick"])


def test_several_gpus_get_a_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        started.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(subprocess, "run", run)
    assert gpu.main(["--quick"]) == 3
    assert "--nproc_per_node=4" in started[0]
    assert started[0][-4:] == ["-m", "benchmarks", "gpu", "--quick"]


def test_its_parts_run_on_a_cpu() -> None:
    args = gpu.arguments(["--quick"])
    args.device = "cpu"
    figures = gpu.measure(args)
    assert figures["num_devices"] == 1
    assert figures["ratio"].keys() == {gpu.AGAIN, "overhead", "losses", "gradients", "prefetch"}
