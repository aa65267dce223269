"""Starts functions of test modules on several ranks by torchrun, and what all ranks hand back."""

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.helpers import end_ranks, quicken

ROOT = Path(__file__).parents[2]


def launch_nodes(*commands: list[str], ranks: int = 1) -> None:
    """Starts a torchrun for each of several nodes on this machine, and expects that they all end well.

    Ranks are given by the agents' process numbers here: the first command's node has rank 0, but for a wrap-around.
    """
    paths = [path for path in [os.environ.get("PYTHONPATH")] if path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *paths])}
    agent = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    agent += ["--nnodes", str(len(commands)), "--rdzv_id", "test", "--rdzv_backend", "c10d"]
    agent += ["--rdzv_endpoint", f"localhost:{free_port()}", "-m"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    nodes = [subprocess.Popen([*agent, *command], env=environment, text=True, **pipes) for command in commands]
    errors = [node.communicate(timeout=300)[1] for node in nodes]
    assert not any(node.returncode for node in nodes), "\n".join(error[-4000:] for error in errors)


def by_torchrun(folder: Path, *functions: Callable[[Path], Any], nodes: int = 1) -> list[dict[str, Any]]:
    """Runs functions of one module on two ranks, of one node or of one each; gives what each rank handed back."""
    names = [function.__name__ for function in functions]
    command = [__name__, str(folder), functions[0].__module__, *names]
    launch_nodes(*[command] * nodes, ranks=2 // nodes)
    return results_of(folder)


def hand_back(functions: Iterable[Callable[[Path], Any]], folder: Path) -> None:
    """Runs functions one after the other on this rank, keeps what they give, and ends it.

    What they give is kept by their names, of a partial one by its first argument, and the folder by `"folder"`.
    """
    results: dict[str, Any] = {"folder": folder}
    for function in functions:
        name = function.args[0] if isinstance(function, partial) else function.__name__
        results[name] = function(folder)
    torch.save(results, folder / f"rank-{os.environ['RANK']}.pt")
    if torch.distributed.is_initialized():
        end_ranks()


def results_of(folder: Path, world_size: int = 2) -> list[dict[str, Any]]:
    """Reads what each rank handed back."""
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(world_size)]


def free_port() -> int:
    """Finds a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def message_of(train: Callable[[], Any]) -> str:
    """Gives the error that a training ends with."""
    try:
        train()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


if __name__ == "__main__":
    module = importlib.import_module(sys.argv[2])
    quicken()
    hand_back([getattr(module, name) for name in sys.argv[3:]], Path(sys.argv[1]))
