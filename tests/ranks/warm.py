"""Starts worker scripts on several ranks that have imported everything already: a launch costs no imports.

`launch.py` starts the same scripts by torchrun. That costs each rank the seconds that torch and transformers take to
import, more than most workers train; so it is left to the tests of launchers, nodes and engines. Here ranks are forked
from a process that does nothing but import. They have the environment that torchrun gives them, and as under torchrun
the others are ended when one fails, though not at once.
"""

import gc
import multiprocessing
import os
import runpy
import sys
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch.distributed import TCPStore

from tests.helpers import quicken_accelerate
from tests.ranks.launch import free_port

# What a rank has to end by itself after another failed: tests read what it says of that.
GRACE_SECONDS = 30

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.helpers", "mixer", "replay", "tasks"])


def launch_warm(worker: str, folder: Path, *arguments: str, world_size: int = 2, timeout_seconds: int = 300) -> None:
    """Runs a worker script on all ranks, and expects that all end well."""
    codes, output = run_warm(worker, folder, *arguments, world_size=world_size, timeout_seconds=timeout_seconds)
    assert codes == [0] * world_size, output[-6000:]


def run_warm(
    worker: str, folder: Path, *arguments: str, world_size: int = 2, timeout_seconds: int = 300, by_hand: bool = False
) -> tuple[list[int | None], str]:
    """Gives the exit code of each rank, and what they wrote to the console; by hand, rank 0 keeps the store."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # kept here, as torchrun keeps it
    port = free_port() if by_hand else store.port
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(not by_hand)}
    shared |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    command = [str(Path(__file__).parent / "workers" / worker), str(folder), *arguments]
    ranks: list[BaseProcess] = []
    for rank in range(world_size):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(_server.Process(target=_be_a_rank, args=(command, environment)))
        ranks[-1].start()
    _wait_for(ranks, timeout_seconds)
    output = "\n".join(_console(folder, rank).read_text(errors="replace") for rank in range(world_size))
    return [rank.exitcode for rank in ranks], output


def _wait_for(ranks: list[BaseProcess], timeout_seconds: float) -> None:
    end = time.monotonic() + timeout_seconds
    while running := [rank for rank in ranks if rank.exitcode is None]:
        if any(rank.exitcode for rank in ranks):
            end = min(end, time.monotonic() + GRACE_SECONDS)
        if not wait([rank.sentinel for rank in running], timeout=end - time.monotonic()):
            for rank in running:
                rank.kill()
                rank.join()


def _console(folder: Path, rank: int) -> Path:
    return folder / f"console-{rank}.txt"


def _be_a_rank(command: list[str], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    console = os.open(_console(Path(command[1]), int(environment["RANK"])), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(console, 1)
    os.dup2(console, 2)
    gc.freeze()  # as in conftest.py: what was imported is not looked through by every collection
    quicken_accelerate()
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
