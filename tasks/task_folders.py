"""Where in the folder of a continual run each of its tasks is."""

from pathlib import Path

from mixer.utils.folder_names import folder_name


def folder_of_task(folder: Path, number: int, name: str) -> Path:
    """Gives the folder that a task trains in.

    Args:
        folder: The run's folder.
        number: The task's number, from 0.
        name: Its name.

    Returns:
        The folder, one step down whatever the name.
    """
    return folder / f"{number + 1:02d}-{folder_name(name)}"
