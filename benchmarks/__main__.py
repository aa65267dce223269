"""Runs a benchmark by its name, lists them all, or runs them all small.

`python -m benchmarks` lists them. `python -m benchmarks NAME ...` runs one; its options follow the name, and `--help`
after the name lists them.
"""

import argparse
import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.commands import COMMANDS, DATA, FOLDER, Command


def run(name: str, options: Sequence[str]) -> Any:
    """Runs a benchmark in this process.

    Args:
        name: Its name.
        options: Its options.

    Returns:
        What its `main` gives.
    """
    sys.argv[0] = f"python -m benchmarks {name}"  # argparse shows it
    return importlib.import_module(f"benchmarks.{COMMANDS[name].module}").main(options)


def listing() -> str:
    """Lists the benchmarks by room, each with its question and how long it takes.

    Returns:
        The lines.
    """
    lines = []
    for room, own in groupby(COMMANDS.items(), key=lambda item: item[1].room):
        lines.append(room)
        for name, command in own:
            minutes = "" if command.minutes is None else f" ({command.minutes} min)"
            lines.append(f"  {name:<11} {command.question}{minutes}")
    return "\n".join(lines)


def run_quick(commands: Mapping[str, Command]) -> list[str]:
    """Runs the benchmarks small, two at a time, each in a process of its own, and prints what a failed one said.

    Args:
        commands: The benchmarks by name; one without a quick form is left out.

    Returns:
        Names of those that failed.
    """
    from benchmarks.made_up_data import make_data

    jobs = {}
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(2) as pool:
        data = str(make_data(Path(root) / "data"))
        for name, command in commands.items():
            if command.quick is not None:
                (folder := Path(root) / name).mkdir()
                places = {FOLDER: str(folder), DATA: data}
                jobs[name] = pool.submit(_runs_well, name, [places.get(option, option) for option in command.quick])
        return [name for name, job in jobs.items() if not job.result()]


def _runs_well(name: str, options: Sequence[str]) -> bool:
    started = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks", name, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    state = f"FAILED with status {done.returncode}\n{done.stdout}" if done.returncode else "ok"
    print(f"{name}: {time.perf_counter() - started:.0f} s, {state}", flush=True)
    return done.returncode == 0


def main(argv: Sequence[str] | None = None) -> Any:
    """Runs the command line.

    Args:
        argv: Command line; `None` takes the process's own.

    Returns:
        What the benchmark gives, or an exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        return run(arguments[0], arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=COMMANDS, metavar="NAME", help="the benchmark, from the list below")
    parser.add_argument("--quick", action="store_true", help="run all of them small, and fail if one fails")
    if parser.parse_args(arguments).quick:
        failed = run_quick(COMMANDS)
        return f"failed: {', '.join(failed)}" if failed else None
    print(listing())
    return None


if __name__ == "__main__":
    ended = main()
    if isinstance(ended, int | str):
        sys.exit(ended)
