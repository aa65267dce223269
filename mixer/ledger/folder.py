"""The folder of a run, opened by commands that read what it recorded."""

from pathlib import Path
from typing import Any

from mixer.ledger.ledger import FORMAT_VERSION, Ledger
from mixer.utils.validation import load_json


def open_ledger(folder: str | Path) -> Ledger:
    """Opens the ledger of a run that is finished or going.

    Args:
        folder: The output folder of a trainer.

    Returns:
        The ledger, to be read.

    Raises:
        ValueError: If the folder is none, holds no run, its ledger has no step yet, or was written by a newer
            version.
    """
    path = Path(folder)
    version = read_note(path).get("format")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ValueError(
            f"The ledger of {path} has format {version}; this version reads up to {FORMAT_VERSION}. Upgrade "
            "adaptive-mixer to the version that wrote it, or a later one."
        )
    ledger = Ledger(path / "ledger")
    if not ledger.has_steps():
        raise ValueError(
            f"The ledger of {path} has no step yet: if the run is still going, try again when it has done some."
        )
    return ledger


def read_description(folder: str | Path) -> dict[str, Any]:
    """Reads what a run is.

    Args:
        folder: The output folder of a trainer.

    Returns:
        What `describe_run` gave; empty if there is none.

    Raises:
        ValueError: If the folder is none, or holds no run.
    """
    description = read_note(Path(folder)).get("run", {})
    return description if isinstance(description, dict) else {}


def newest_run(folder: str | Path) -> Path:
    """Finds what is written in the folder of a run of several parts, such as the tasks of a continual run.

    Args:
        folder: The output folder of a trainer, or one that holds such folders.

    Returns:
        The folder itself if it is a trainer's, or holds none; else the folder in it whose ledger was written last.
    """
    path = Path(folder)
    if (path / "ledger" / "ledger.json").is_file():
        return path
    return max(_runs_within(path), key=_last_written, default=path)


def _runs_within(folder: Path) -> list[Path]:
    return sorted(note.parents[1] for note in folder.glob("*/ledger/ledger.json"))


def _last_written(run: Path) -> float:
    return max(path.stat().st_mtime for path in [run / "ledger" / "ledger.json", *(run / "ledger" / "clock").glob("*")])


def read_note(folder: Path) -> dict[str, Any]:
    """Reads what is noted beside the tables of a run.

    Args:
        folder: The output folder of a trainer.

    Returns:
        The content of `ledger.json`.

    Raises:
        ValueError: If the folder is none, holds no run, or the file is damaged.
    """
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}: give the output folder of a run (training.output_dir).")
    if not (folder / "ledger" / "ledger.json").is_file():
        within = [str(run) for run in _runs_within(folder)]
        raise ValueError(
            f"{folder} is not the folder of a run: it has no ledger/ledger.json. Give "
            + (
                f"one that it holds: {', '.join(within)}."
                if within
                else "the output folder of a run (training.output_dir)."
            )
        )
    try:
        note = load_json(folder / "ledger" / "ledger.json")
    except ValueError:
        note = None
    if not isinstance(note, dict):
        raise ValueError(
            f'{folder / "ledger" / "ledger.json"} is damaged: write {{"format": {FORMAT_VERSION}}} in its place to '
            "read the tables beside it."
        )
    return note
