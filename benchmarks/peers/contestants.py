"""Who takes part, what each needs, and how one is run in a process of its own."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class Contestant:
    """One side of a contest.

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


MIXING = (
    Contestant("mixer", "with_mixer:training"),
    Contestant("interleave, map", "with_interleave:map_training", "datasets"),
    Contestant("interleave, iterable", "with_interleave:iterable_training", "datasets"),
    Contestant("torchdata.nodes", "with_torchdata:training", "torchdata"),
    Contestant("Grain", "with_grain:training", "grain"),
)
GRAMIAN = (
    Contestant("mixer", "with_probe:training"),
    Contestant("TorchJD, by rows", "with_torchjd:by_rows", "torchjd"),
    Contestant("TorchJD, by streams", "with_torchjd:by_streams", "torchjd"),
)


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
