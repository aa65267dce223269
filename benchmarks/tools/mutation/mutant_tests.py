"""Runs the tests of mutated modules: a plugin of pytest that collects them once and forks for every mutant.

Functions are changed in place, so that whoever imported them has the mutant too. A test that takes long is left out,
and Hypothesis tries fewer examples and shrinks none: a mutant that only those would kill counts as survived.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from benchmarks.tools.mutation.mutants import Mutant
from benchmarks.tools.mutation.source_in_place import put_in

KILLED, SURVIVED, NO_PROGRAM, NO_TEST = "killed", "survived", "no program", "no test"
_SECONDS_AT_LEAST = 2  # of processor time, for a test of a mutant; five times of what it takes without, if that is more
_WALL_SECONDS = 900  # for a mutant that waits for ever


class MutantTests:
    """Runs every mutant's tests in place of pytest's own loop.

    Args:
        mutants: The mutants.
        files: The files of tests for each module.
        folder: Where the forked processes write what became of each.
        num_workers: How many run at once.
        most_seconds: Tests that take more processor time than this are left out.
    """

    def __init__(
        self,
        mutants: Sequence[Mutant],
        files: Mapping[str, Sequence[str]],
        folder: Path,
        num_workers: int,
        most_seconds: float,
    ):
        self.mutants, self.results = mutants, [""] * len(mutants)
        self._files = {module: [Path(file).resolve() for file in names] for module, names in files.items()}
        self.num_tests, self.num_left_out = 0, 0
        self._folder, self._num_workers, self._most_seconds = folder, num_workers, most_seconds
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, set[tuple[str, int]]] = {}
        self._kills: dict[str, int] = {}

    def pytest_collection(self) -> None:
        """Asks Hypothesis for less; the tests are imported after this."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", settings.get_profile("deterministic"), phases=phases, max_examples=20)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the tests as they are, and then those of each mutant."""
        if session.testsfailed:
            raise session.Interrupted("tests could not be collected")
        for item in session.items:
            self._measure(item)
        items = [item for item in session.items if self._seconds[item.nodeid] <= self._most_seconds]
        self.num_tests, self.num_left_out = len(items), len(session.items) - len(items)
        print(f"\n{len(items)} tests, {self.num_left_out} that take long are left out", flush=True)
        self._run_all(items)
        return True

    def _measure(self, item: pytest.Item) -> None:
        """Notes what a test costs and which functions of the mutated modules it calls."""
        files = {sys.modules[mutant.module].__file__ for mutant in self.mutants}
        calls: set[tuple[str, int]] = set()

        def note(frame: FrameType, event: str, argument: object) -> None:
            if frame.f_code.co_filename in files:
                calls.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        start = time.process_time()
        sys.settrace(note)
        try:
            failed = _fails(item)
        finally:
            sys.settrace(None)
        seconds = time.process_time() - start
        if failed or _fails(item):  # a mutant's fork has run it before: one that passes only once would kill them all
            raise pytest.UsageError(f"{item.nodeid} fails without any mutant, the first or the second time")
        self._seconds[item.nodeid], self._calls[item.nodeid] = seconds, calls

    def _run_all(self, items: Sequence[pytest.Item]) -> None:
        running: dict[int, tuple[int, float]] = {}
        waiting = iter(enumerate(self.mutants))
        number, mutant = next(waiting, (0, None))
        while running or mutant is not None:
            if mutant is not None and len(running) < self._num_workers:
                chosen = self._tests_of(mutant, items)
                running[self._start(number, mutant, chosen)] = (number, time.monotonic())
                number, mutant = next(waiting, (0, None))
                continue
            time.sleep(0.002)
            for process, (which, started) in list(running.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    del running[process]
                    self._note(which, status)
                elif time.monotonic() - started > _WALL_SECONDS:
                    os.kill(process, 9)

    def _tests_of(self, mutant: Mutant, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """The tests that call its function, all if it is in none; first those that killed most for their time."""
        file, lines = sys.modules[mutant.module].__file__, mutant.lines
        reached = [
            item
            for item in items
            if item.path in self._files[mutant.module]
            and (
                lines is None or any(f == file and lines[0] <= line <= lines[1] for f, line in self._calls[item.nodeid])
            )
        ]
        return sorted(reached, key=lambda item: self._seconds[item.nodeid] / (1 + self._kills.get(item.nodeid, 0)))

    def _start(self, number: int, mutant: Mutant, items: Sequence[pytest.Item]) -> int:
        process = os.fork()
        if process == 0:
            result = {"result": KILLED, "test": "its import"}
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(1, 2)
                result = self._outcome(mutant, items)
            finally:
                (self._folder / f"{number}.json").write_text(json.dumps(result))
                os._exit(0)
        return process

    def _outcome(self, mutant: Mutant, items: Sequence[pytest.Item]) -> dict[str, str]:
        source = mutant.source()
        if source is None:
            return {"result": NO_PROGRAM, "test": ""}
        if not items:
            return {"result": NO_TEST, "test": ""}
        signal.setitimer(signal.ITIMER_PROF, _SECONDS_AT_LEAST)  # what ends it is the signal's default: no test sees it
        put_in(sys.modules[mutant.module], source)
        for item in items:
            signal.setitimer(signal.ITIMER_PROF, max(_SECONDS_AT_LEAST, 5 * self._seconds[item.nodeid]))
            if _fails(item):
                return {"result": KILLED, "test": item.nodeid}
        return {"result": SURVIVED, "test": ""}

    def _note(self, number: int, status: int) -> None:
        file = self._folder / f"{number}.json"
        result = json.loads(file.read_text()) if status == 0 else {"result": KILLED, "test": "the limit of its time"}
        self.results[number] = result["result"]
        self._kills[result["test"]] = self._kills.get(result["test"], 0) + 1
        mutant = self.mutants[number]
        if result["result"] in (SURVIVED, NO_TEST):
            print(f"{result['result']}: {mutant.module}:{mutant.line}: {mutant.change}", flush=True)


def _fails(item: pytest.Item) -> bool:
    reports = runtestprotocol(item, log=False, nextitem=None)
    return any(report.failed for report in reports)
