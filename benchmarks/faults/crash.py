"""A run that is killed again and again at random instants, against the same run that nobody kills.

Run `python -m benchmarks crash`. All processes of the run get SIGKILL at instants drawn evenly over the time
that the undisturbed run took, the writing of checkpoints included; each time it is launched again and goes on by
itself. At the end weights, optimizer, ledger and log of both runs are compared to the bit, the log's timings left out.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from benchmarks.common import show, write_json
from benchmarks.faults.crash_run import END, EVENTS
from mixer import Ledger

_POLL_SECONDS = 0.001
_LIMIT_SECONDS = 600.0
_TIMINGS = ("runtime", "per_second")


class Event(NamedTuple):
    """A note of the run.

    Args:
        kind: `begin` of training, end of a `step`, a checkpoint `writes` or `written`.
        step: The step after which it came.
        time: Seconds.
    """

    kind: str
    step: int
    time: float


class Instant(NamedTuple):
    """When a run is killed.

    Args:
        step: After which step,
        delay: and how many seconds later.
    """

    step: int
    delay: float


def read_events(folder: Path, offset: int = 0) -> list[Event]:
    """Reads the notes of a run.

    Args:
        folder: The run's folder.
        offset: Where in the file to begin.

    Returns:
        The events.
    """
    path = folder / EVENTS
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode().splitlines()
    return [Event(kind, int(step), float(at)) for kind, step, at in (line.split() for line in lines)]


def draw_instants(events: Sequence[Event], num_kills: int, seed: int) -> list[Instant]:
    """Draws instants evenly over the time of an undisturbed run.

    Args:
        events: Its events.
        num_kills: How many.
        seed: Seed of the draw.

    Returns:
        The instants, in order.
    """
    marks = [event for event in events if event.kind in ("begin", "step")]
    end = events[-1].time
    generator = random.Random(seed)
    times = sorted(generator.uniform(marks[0].time, end) for _ in range(num_kills))
    befores = [max((mark for mark in marks if mark.time <= at), key=lambda mark: mark.time) for at in times]
    return [Instant(before.step, at - before.time) for before, at in zip(befores, times, strict=True)]


class Launch:
    """One start of the run.

    Args:
        folder: The run's folder.
        num_ranks: Number of ranks.
        num_steps: Number of steps.
        num_workers: Worker processes a rank.
    """

    def __init__(self, folder: Path, num_ranks: int, num_steps: int, num_workers: int):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_ranks)]
        command = [
            sys.executable,
            *(launcher if num_ranks > 1 else []),
            "-m",
            "benchmarks.faults.crash_run",
            str(folder),
        ]
        command += ["--steps", str(num_steps), "--workers", str(num_workers)]
        self._folder = folder
        self._offset = (folder / EVENTS).stat().st_size if (folder / EVENTS).is_file() else 0
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / "output.txt").open("ab")
        self.process = psutil.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def events(self) -> list[Event]:
        """Gives what this start of the run has noted so far."""
        return read_events(self._folder, self._offset)

    def kill_at(self, instant: Instant, generator: random.Random) -> Event | None:
        """Kills all processes at an instant.

        Args:
            instant: When.
            generator: Draws the order in which the processes go.

        Returns:
            The last event before it; `None` if the run had ended.
        """
        limit = time.monotonic() + _LIMIT_SECONDS
        while not any(event.kind != "writes" and event.step >= instant.step for event in self.events()):
            if self.process.poll() is not None:
                self.wait()
                return None
            if time.monotonic() > limit:
                self.kill(generator)
                raise TimeoutError(f"The run did not come to step {instant.step}; see {self._folder}/output.txt.")
            time.sleep(_POLL_SECONDS)
        time.sleep(instant.delay)
        self.kill(generator)
        return self.events()[-1]

    def kill(self, generator: random.Random) -> None:
        """Kills the run's processes, those of torchrun too, which are in sessions of their own."""
        processes = [*self.process.children(recursive=True), self.process]
        generator.shuffle(processes)
        for process in processes:
            if process.is_running():
                process.kill()
        psutil.wait_procs(processes)
        self._log.close()

    def wait(self) -> None:
        """Waits for the run's end.

        Raises:
            RuntimeError: If it failed.
        """
        status = self.process.wait(_LIMIT_SECONDS)
        self._log.close()
        if status != 0:
            text = (self._folder / "output.txt").read_text(errors="replace")
            raise RuntimeError(f"The run ended with status {status}:\n{text[-4000:]}")


def compare(first: Path, second: Path) -> dict[str, bool]:
    """Compares the ends of two runs.

    Args:
        first: Folder of the one.
        second: Folder of the other.

    Returns:
        Whether each part is the same to the bit.
    """
    ends = [torch.load(folder / END, weights_only=False) for folder in (first, second)]
    ledgers = [Ledger(folder / "ledger") for folder in (first, second)]
    return {
        **compare_ends(*ends),
        "streams": ledgers[0].to_pandas().equals(ledgers[1].to_pandas()),
        "evaluations": ledgers[0].evaluations().equals(ledgers[1].evaluations()),
    }


def compare_ends(first: dict[str, Any], second: dict[str, Any]) -> dict[str, bool]:
    """Compares what two runs ended with, the log's timings left out.

    Args:
        first: `weights`, `optimizer` and `logs` of the one.
        second: Those of the other.

    Returns:
        Whether each is the same to the bit.
    """
    logs = [
        [{key: value for key, value in entry.items() if not key.endswith(_TIMINGS)} for entry in end["logs"]]
        for end in (first, second)
    ]
    return {
        **{part: _are_equal(first[part], second[part]) for part in ("weights", "optimizer")},
        "logs": logs[0] == logs[1],
    }


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_are_equal(first[key], second[key]) for key in first)
    return torch.equal(torch.as_tensor(first), torch.as_tensor(second))


def crash(folder: Path, num_ranks: int, args: argparse.Namespace) -> dict[str, Any]:
    """Trains undisturbed and killed, and compares.

    Args:
        folder: Where both runs are kept.
        num_ranks: Number of ranks.
        args: The command line.

    Returns:
        Figures: `kills`, of them `kills_while_writing` a checkpoint and `kills_before_first_step` of a start;
        `repeated_steps`; `equal` by part; `seconds` of the undisturbed run's training.
    """
    whole, killed = folder / f"whole-{num_ranks}", folder / f"killed-{num_ranks}"
    Launch(whole, num_ranks, args.steps, args.workers).wait()
    events = read_events(whole)
    last: list[Event] = []
    generator = random.Random(args.seed)
    for instant in draw_instants(events, args.kills, args.seed):
        event = Launch(killed, num_ranks, args.steps, args.workers).kill_at(instant, generator)
        if event is not None:
            last.append(event)
    Launch(killed, num_ranks, args.steps, args.workers).wait()
    steps = sum(event.kind == "step" for event in read_events(killed))
    return {
        "num_ranks": num_ranks,
        "num_steps": args.steps,
        "kills": len(last),
        "kills_while_writing": sum(event.kind == "writes" for event in last),
        "kills_before_first_step": sum(event.kind == "begin" for event in last),
        "repeated_steps": steps - args.steps,
        "seconds": events[-1].time - events[0].time,
        "equal": compare(whole, killed),
    }


def _show(results: Sequence[Any]) -> None:
    parts = list(results[0]["equal"])
    columns = ["ranks", "steps", "kills", "while writing", "before a first step", "repeated steps", *parts]
    rows = []
    for result in results:
        keys = ("num_ranks", "num_steps", "kills", "kills_while_writing", "kills_before_first_step", "repeated_steps")
        cells = ["equal" if result["equal"][part] else "DIFFERENT" for part in parts]
        rows.append([*(str(result[key]) for key in keys), *cells])
    show("A killed run against one that was not", columns, rows)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="few kills of a short run, for a test")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300, help="steps of the run")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--workers", type=int, default=0, help="dataloader_num_workers")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    args = parser.parse_args(argv)
    if args.quick:
        args.kills, args.steps, args.ranks = 1, 40, [2]
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the table and writes the figures; fails if anything differs.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    args = _arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        results = [crash(Path(folder), num_ranks, args) for num_ranks in args.ranks]
    _show(results)
    write_json(args.json, {"workers": args.workers, "seed": args.seed, "results": results})
    if not all(all(result["equal"].values()) for result in results):
        sys.exit(1)
