"""Several runs that are shown or compared together."""

from collections.abc import Sequence
from pathlib import Path

from mixer.policies.objective import Objective
from mixer.tools.records.run import Run
from mixer.utils.errors import InvalidValueError

# Name of the minor of very many streams, drawn as one; see `mixer.tools.report.grouping`.
OTHERS = "other streams"


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Opens finished or running runs, named by `run_names`.

    Args:
        folders: Output folders of trainers.

    Raises:
        ValueError: If a folder appears twice, holds no run, or its ledger has no step yet.
    """
    return [Run(folder, name) for folder, name in zip(folders, run_names(folders), strict=True)]


def run_names(folders: Sequence[Path]) -> list[str]:
    """Names runs after their folders, or by the paths where two folders have the same name.

    Raises:
        ValueError: If a folder appears twice.
    """
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise InvalidValueError.about("runs", f"{folders[number]} is given twice: give each run once.")
    names = [folder.name for folder in resolved]
    return [name if names.count(name) == 1 else str(folder) for folder, name in zip(folders, names, strict=True)]


def stream_names(runs: Sequence[Run]) -> list[str]:
    """Lists the streams of all runs in order of first appearance, `OTHERS` last: each has one place and colour."""
    names = dict.fromkeys(name for run in runs for name in run.streams)
    return sorted(names, key=OTHERS.__eq__)


def declared(runs: Sequence[Run]) -> Objective | None:
    """Returns the objective of the first run that declares one."""
    return next((run.objective for run in runs if run.objective is not None), None)


def last_epoch(runs: Sequence[Run]) -> float:
    """Returns the end of the longest run on the data clock."""
    return max(float(run.clock["epoch"].max()) for run in runs)
