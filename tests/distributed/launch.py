"""Starts worker scripts on several ranks, and what those hand back."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.helpers import end_ranks

ROOT = Path(__file__).parents[2]


def launch(
    worker: str, folder: Path, *arguments: str, world_size: int = 2, timeout_seconds: int = 300
) -> subprocess.CompletedProcess[str]:
    paths = [path for path in [os.environ.get("PYTHONPATH")] if path]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(world_size)]
    return subprocess.run(
        [*command, str(Path(__file__).with_name(worker)), str(folder), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *paths])},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


def launch_well(worker: str, folder: Path, *arguments: str, world_size: int = 2, timeout_seconds: int = 300) -> None:
    """Launches and expects that all ranks end well."""
    run = launch(worker, folder, *arguments, world_size=world_size, timeout_seconds=timeout_seconds)
    assert run.returncode == 0, run.stderr[-6000:]


def results_of(folder: Path, name: str, world_size: int = 2) -> list[dict[str, Any]]:
    """Reads what each rank handed back by `end_with`."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(world_size)]


def end_with(results: dict[str, Any], folder: Path, name: str) -> None:
    """Hands this rank's results back and ends it."""
    (folder / f"{name}-{torch.distributed.get_rank()}.json").write_text(json.dumps(results))
    end_ranks()


def message_of(train: Callable[[], Any]) -> str:
    """Gives the error that a training ends with."""
    try:
        train()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
