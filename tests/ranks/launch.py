"""Starts worker scripts on several ranks, and what those hand back."""

import json
import os
import socket
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
        [*command, str(Path(__file__).parent / "workers" / worker), str(folder), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *paths])},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


def launch_nodes(*commands: list[str], timeout_seconds: int = 300) -> list[subprocess.CompletedProcess[str]]:
    """Starts a torchrun for each of several nodes on this machine, with one rank each, and waits for them all.

    Ranks are given by the agents' process numbers here: the first command's node has rank 0, but for a wrap-around.
    """
    port = free_port()
    paths = [path for path in [os.environ.get("PYTHONPATH")] if path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *paths])}
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(commands)), "--nproc_per_node", "1"]
    agent += ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{port}", "--rdzv_id", "test"]
    nodes = [
        subprocess.Popen([*agent, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    ended = []
    for node in nodes:
        out, error = node.communicate(timeout=timeout_seconds)
        ended.append(subprocess.CompletedProcess(node.args, node.returncode, out, error))
    return ended


def free_port() -> int:
    """Finds a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
