"""A continual run as one run: its tasks one after the other, on one data clock."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from mixer.analysis.report.run import Run, read_run
from mixer.ledger.ledger import Ledger
from tasks.task import folder_of_task

# What counts from the beginning of a run: that of the tasks before is added.
_COUNTED = ("step", "samples", "tokens", "epoch")


def joined_run(folder: Path, name: str, task_names: Sequence[str]) -> Run | None:
    """Reads the tasks of a continual run, finished or going, and joins them.

    Args:
        folder: The run's folder.
        name: What the page calls it.
        task_names: Names of its tasks.

    Returns:
        The run, its streams in the order of the tasks and the memory last; `None` if no step is recorded yet.

    Raises:
        ValueError: If the ledger of a task is damaged.
    """
    folders = [folder_of_task(folder, number, task) for number, task in enumerate(task_names)]
    parts = [read_run(one, name) for one in folders if _has_steps(one / "ledger")]
    return join(parts, task_names) if parts else None


def join(parts: Sequence[Run], first_streams: Sequence[str] = ()) -> Run:
    """Puts runs one after the other on one data clock.

    Args:
        parts: The runs, at least one, in order.
        first_streams: Streams that come before the others in the joined run, where it has them.

    Returns:
        One run, by the name of the first part. What streams count for themselves, such as their passes, begins anew
        with each part.
    """
    ends = [{name: part.clock[name].iloc[-1] for name in _COUNTED} for part in parts]
    done = [{name: sum(end[name] for end in ends[:number]) for name in _COUNTED} for number in range(len(parts))]
    joined: dict[str, Any] = {"name": parts[0].name, "ended": parts[-1].ended, "eval_weights": parts[-1].eval_weights}
    for field in fields(Run):
        if field.name not in (*joined, "description", "cosines"):
            joined[field.name] = _joined([getattr(part, field.name) for part in parts], done)
    joined["description"] = {"streams": [row for part in parts for row in part.description.get("streams", [])]}
    joined["cosines"] = None  # a task has no gradient in common with another one, and its own report shows the memory's
    streams = joined["streams"]
    order = dict.fromkeys([*(name for name in first_streams if name in streams), *streams])
    return Run(**{**joined, "streams": {name: streams[name] for name in order}})


def task_ends(run: Run, task_names: Sequence[str]) -> list[float]:
    """Finds where tasks end on the data clock of a joined run.

    Args:
        run: The run.
        task_names: Names of its tasks, whose streams they are too.

    Returns:
        The epoch after the last step of each that has begun.
    """
    return [float(run.streams[name]["epoch"].iloc[-1]) for name in task_names if name in run.streams]


def _has_steps(folder: Path) -> bool:
    return (folder / "ledger.json").exists() and Ledger(folder).has_steps()


def _joined(values: Sequence[Any], done: Sequence[dict[str, float]]) -> Any:
    """Joins what the parts have in one field: a table, or tables by name."""
    if isinstance(values[0], pd.DataFrame):
        shifted = [
            rows.assign(**{name: rows[name] + before[name] for name in _COUNTED if name in rows})
            for rows, before in zip(values, done, strict=True)
        ]
        return pd.concat([rows for rows in shifted if len(rows)] or shifted[:1], ignore_index=True)
    having = {
        key: [number for number, value in enumerate(values) if key in value]
        for key in dict.fromkeys(key for value in values for key in value)
    }
    return {
        key: _joined([values[number][key] for number in numbers], [done[number] for number in numbers])
        for key, numbers in having.items()
    }
