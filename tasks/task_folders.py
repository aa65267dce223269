"""Folders of the tasks of a continual run."""

from pathlib import Path

from mixer.utils.files import folder_name


def folder_of_task(folder: Path, number: int, name: str) -> Path:
    """Returns the training folder of a task, numbered from 0: a direct subfolder of the run, whatever its name."""
    return folder / f"{number + 1:02d}-{folder_name(name)}"
