"""Who takes part, whose turn it is, and how one is run in a process of its own."""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import rotated

Runs = dict[str, list[dict[str, Any]] | None]  # by contestant, round by round; None if it is not installed

OURS = "mixer"
_TIMEOUT_SECONDS = 900
_ROWS = (4_000, 2_400, 1_600)  # of each domain: as its share, so that none runs out
_VALIDATION_ROWS, _LENGTH = 200, 64


@dataclass(frozen=True)
class Contestant:
    """One side of the contest.

    Args:
        name: Its name, in tables too.
        work: Where its work is: `"module:function"` of this package.
        package: The distribution whose version is named; `None` for this toolkit.
    """

    name: str
    work: str
    package: str | None = None

    @property
    def version(self) -> str | None:
        """Version of its package; `None` if that is not installed."""
        found = next(iter(importlib.metadata.distributions(name=self.package or "torch")), None)
        return found and found.version


CONTESTANTS = (
    Contestant(OURS, "with_mixer:training"),
    Contestant("interleave, map", "with_interleave:map_training", "datasets"),
    Contestant("interleave, iterable", "with_interleave:iterable_training", "datasets"),
    Contestant("torchdata.nodes", "with_torchdata:training", "torchdata"),
    Contestant("Grain", "with_grain:training", "grain"),
)


def run_all(args: argparse.Namespace) -> Runs:
    """Has all contestants train on the mixture, in fresh processes and in turns.

    Args:
        args: The command line.

    Returns:
        The figures of each.
    """
    from benchmarks.peers.work import write_rows

    chosen = {own.name: own for own in CONTESTANTS if args.only in (None, own.name) or own.name == OURS}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, own in chosen.items() if own.version is not None}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        write_rows(path, [count // args.divisor for count in _ROWS], _VALIDATION_ROWS // args.divisor, _LENGTH)
        shape = {"hidden": 64, "layers": 2, "length": _LENGTH, "batch_size": 16, "steps": args.steps}
        options = {"data": str(path), **shape, "threads": args.threads}
        for number in range(args.rounds):
            for name in rotated(list(found), number):
                found[name].append(own := run_apart(chosen[name], {**options, "seed": number}))
                print(f"  {name}, round {number + 1}: {own.get('seconds', own.get('error'))}", flush=True)
    return {name: found.get(name) for name in chosen}


def run_apart(contestant: Contestant, options: dict[str, Any]) -> dict[str, Any]:
    """Has a contestant do its work in a fresh process.

    Args:
        contestant: Who.
        options: Of the contest.

    Returns:
        The figures; or `error`, the last line that it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "figures.json"
        path, threads = os.environ.get("PYTHONPATH", os.getcwd()), str(options["threads"])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": threads}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.peers.child", contestant.work, str(result)],
                input=json.dumps({**options, "folder": str(Path(folder) / "output")}),
                env=environment,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {_TIMEOUT_SECONDS} s"}
        if not result.is_file():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return {"error": lines[-1][:300] if lines else f"ended with {done.returncode}"}
        return dict(json.loads(result.read_text()))
