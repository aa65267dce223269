"""Folders of the tasks of a continual run, and names of its files."""

from pathlib import Path

from mixer.utils.files import folder_name

METRICS_FILE, PAGE_FILE, RUN_STATE_FILE = "metrics.json", "scores.html", "continual.json"


def folder_of_task(folder: Path, number: int, name: str) -> Path:
    """Returns the training folder of a task, numbered from 0: a direct subfolder of the run, whatever its name."""
    return folder / f"{number + 1:02d}-{folder_name(name)}"
