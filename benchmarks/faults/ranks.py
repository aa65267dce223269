"""Ranks that are forked from a process that has imported everything, and a watchdog that lets none of them hang."""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import psutil
from torch.distributed import TCPStore

from benchmarks.faults.notes import EVENTS, Event, Instant, read_events
from benchmarks.faults.rank import be_a_rank
from benchmarks.faults.run import Start

# What a rank has to end by itself after another one ended badly; a launcher would end it then.
GRACE_SECONDS = 20.0
_POLL_SECONDS = 0.002
_LOST_CODE = 255  # of a process whose status the fork server could not tell

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["benchmarks.faults.rank"])


class End(NamedTuple):
    """How the ranks of a start ended.

    Args:
        codes: Their exit codes; `None` for a rank that was never started.
        consoles: What each of them wrote to the console.
        hung: Those that the watchdog had to kill.
        seconds: From the fault, or the start where there was none, until the last one ended.
    """

    codes: list[int | None]
    consoles: list[str]
    hung: list[int]
    seconds: float

    @property
    def is_well(self) -> bool:
        """Whether all of them ended well."""
        return not self.hung and all(code in (0, None) for code in self.codes)


class Ranks:
    """The ranks of one start of the run, with the environment that torchrun gives them.

    Args:
        start: What they are to do.
        num_ranks: How many there are.
        absent: A rank that is never started.
        by_hand: Whether they are started as by hand, with the store that they meet in in rank 0.
    """

    def __init__(self, start: Start, num_ranks: int, absent: int | None = None, by_hand: bool = False):
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._port, self._store = store.port, None if by_hand else store  # kept as torchrun keeps it
        del store
        self._case, self._fault_at = Path(start.case), time.monotonic()
        self._case.mkdir(parents=True, exist_ok=True)
        notes = self._case / EVENTS
        self._offset = notes.stat().st_size if notes.is_file() else 0
        number = len(list(self._case.glob("console-*-0.txt")))
        self._consoles = [self._case / f"console-{number}-{rank}.txt" for rank in range(num_ranks)]
        self.processes: list[BaseProcess | None] = []
        for rank, console in enumerate(self._consoles):
            console.touch()
            process = _server.Process(target=be_a_rank, args=(start, str(console), self._environment(rank, num_ranks)))
            self.processes.append(None if rank == absent else process)
            if rank != absent:
                process.start()

    def _environment(self, rank: int, num_ranks: int) -> dict[str, str]:
        own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port)}
        own["TORCHELASTIC_USE_AGENT_STORE"] = str(self._store is not None)
        own |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, "RANK": str(rank), "LOCAL_RANK": str(rank)}

    def events(self) -> list[Event]:
        """Gives what this start has noted so far."""
        return read_events(self._case, self._offset)

    def wait_until(self, instant: Instant) -> bool:
        """Waits for an instant of the run, a minute at most; the fault counts from it.

        Args:
            instant: When.

        Returns:
            Whether it came before the run ended.
        """
        limit = time.monotonic() + 60.0
        while not any(event.kind != "writes" and event.step >= instant.step for event in self.events()):
            if any(code is not None for code in self._codes()) or time.monotonic() > limit:
                return False
            time.sleep(_POLL_SECONDS)
        time.sleep(instant.delay)
        self._fault_at = time.monotonic()
        return all(code is None for code in self._codes())

    def send(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Sends a signal to ranks that still run.

        Args:
            number: The signal.
            ranks: Which ranks; `None` for all.
        """
        for rank, process in enumerate(self.processes):
            if process is not None and process.is_alive() and (ranks is None or rank in ranks):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(_pid(process), number)

    def loader_workers(self, rank: int) -> list[psutil.Process]:
        """Lists the worker processes of a rank.

        Args:
            rank: The rank.

        Returns:
            The processes.
        """
        process = self.processes[rank]
        if process is None or not process.is_alive():
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(_pid(process)).children()
        return []

    def wait(self, limit_seconds: float, apart_from: int | None = None) -> End:
        """Waits until all ranks have ended, and kills those that do not.

        Args:
            limit_seconds: How long at most; less once one has ended badly.
            apart_from: A rank that is not waited for, and killed at the end.

        Returns:
            How they ended.
        """
        limit, hung = time.monotonic() + limit_seconds, []
        while running := self._running(apart_from):
            if any(self._codes()):
                limit = min(limit, time.monotonic() + GRACE_SECONDS)
            ended = wait([process.sentinel for process in running], timeout=max(limit - time.monotonic(), 0.0))
            if not ended:
                hung = [rank for rank, process in enumerate(self.processes) if process in running]
                self.kill()
        seconds = time.monotonic() - self._fault_at
        self.kill()
        return End(self._codes(), [path.read_text(errors="replace") for path in self._consoles], hung, seconds)

    def kill(self) -> None:
        """Kills all ranks and their workers."""
        for process in self.processes:
            if process is not None and process.is_alive():
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    found = psutil.Process(_pid(process))
                    for one in [*found.children(recursive=True), found]:
                        one.kill()
                process.join()

    def _running(self, apart_from: int | None) -> list[BaseProcess]:
        others = [process for rank, process in enumerate(self.processes) if rank != apart_from]
        return [process for process in others if process is not None and process.exitcode is None]

    def _codes(self) -> list[int | None]:
        found = [None if process is None else process.exitcode for process in self.processes]
        written = [path.with_suffix(".code") for path in self._consoles]
        return [
            int(path.read_text()) if code == _LOST_CODE and path.is_file() else code
            for code, path in zip(found, written, strict=True)
        ]


def _pid(process: BaseProcess) -> int:
    assert process.pid is not None, "only a process that was started has a number"
    return process.pid
