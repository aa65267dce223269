"""Runs functions of test modules on several ranks that have imported everything already: a launch costs no imports.

`launch.py` starts them by torchrun. That costs each rank the seconds that torch and transformers take to import,
more than most of them train; so it is left to tests of launchers, nodes and engines. Here ranks are forked from a
process that does nothing but import. They have the environment that torchrun gives them, and as under torchrun the
others are ended when one fails, though not at once.
"""

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed import TCPStore

from tests.helpers import quicken
from tests.ranks.launch import free_port, hand_back, results_of

Results = list[dict[str, Any]]  # of each rank
# What a rank has to end by itself after another failed: tests read what it says of that.
GRACE_SECONDS = 30

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    # accelerate imports DeepSpeed, if it is installed, when a model is prepared.
    ["pytest", "tests.ranks.launch", "mixer.trainer.trainer", "replay.buffer", "tasks.continual.continual", "deepspeed"]
)


def on_ranks(folder: Path, *functions: Callable[[Path], Any], world_size: int = 2) -> list[dict[str, Any]]:
    """Runs functions one after the other on all ranks, which are to end well; gives what each handed back."""
    codes, output = run_warm(folder, partial(hand_back, functions), world_size=world_size)
    assert codes == [0] * world_size, output[-6000:]
    return results_of(folder, world_size)


def launched(*functions: Callable[[Path], Any], rare: Iterable[Callable[[Path], Any]] = ()) -> Any:
    """A fixture of a module: what functions gave on two ranks; rare ones run where tests marked `full` do."""

    @pytest.fixture(scope="module")
    def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
        of_module = [item for item in request.session.items if item.path == request.path]
        more = rare if any(item.get_closest_marker("full") for item in of_module) else ()
        return on_ranks(tmp_path_factory.mktemp("ranks"), *functions, *more)

    return results


def assert_as_alone(results: Results, name: str, alone: Iterable[Any]) -> None:
    """Arrays that a function gave are the same on both ranks, and those of one process."""
    first, second = (result[name] for result in results)
    for one, other, expected in zip(first, second, alone, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, expected, rtol=1e-6)


def some(names: Iterable[str], few: Collection[str]) -> list[Any]:
    """Cases to parametrize by, of which but a few are run by `make test-all` alone."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.full) for name in names]


def run_warm(
    folder: Path, function: Callable[[Path], Any], *, world_size: int = 2, by_hand: bool = False
) -> tuple[list[int | None], str]:
    """Gives the exit code of each rank, and what they wrote to the console; by hand, rank 0 keeps the store."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # kept here, as torchrun keeps it
    port = free_port() if by_hand else store.port
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(not by_hand)}
    shared |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    ranks: list[BaseProcess] = []
    for rank in range(world_size):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(_server.Process(target=_be_a_rank, args=(function, folder, environment)))
        ranks[-1].start()
    _wait_for(ranks)
    output = "\n".join(_console(folder, rank).read_text(errors="replace") for rank in range(world_size))
    return [rank.exitcode for rank in ranks], output


def _wait_for(ranks: list[BaseProcess]) -> None:
    end = time.monotonic() + 300
    while running := [rank for rank in ranks if rank.exitcode is None]:
        if any(rank.exitcode for rank in ranks):
            end = min(end, time.monotonic() + GRACE_SECONDS)
        if not wait([rank.sentinel for rank in running], timeout=end - time.monotonic()):
            for rank in running:
                rank.kill()
                rank.join()


def _console(folder: Path, rank: int) -> Path:
    return folder / f"console-{rank}.txt"


def _be_a_rank(function: Callable[[Path], Any], folder: Path, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    console = os.open(_console(folder, int(environment["RANK"])), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(console, 1)
    os.dup2(console, 2)
    gc.freeze()  # as in conftest.py: what was imported is not looked through by every collection
    quicken()
    multiprocessing.set_start_method("fork", force=True)  # of a rank's own workers, as under torchrun
    function(folder)
