"""Opens a run's output folder for commands that read its ledger."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixer.ledger.ledger import FORMAT_VERSION, Ledger, runs_within
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.files import other_version
from mixer.utils.validation import load_json, whole_number


def open_ledger(folder: str | Path) -> Ledger:
    """Opens the ledger of a finished or ongoing run for reading.

    Args:
        folder: Output folder of a trainer.

    Raises:
        ValueError: If there is no such run, its ledger has no step yet, or a newer version wrote it.
    """
    path = Path(folder)
    note = read_note(path)
    version = note.get("format")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise wrong_value("format", f"{other_version(f'The ledger of {path}', version, FORMAT_VERSION)}.")
    ledger = Ledger(path / "ledger", interval_steps=interval_in(note, path))
    if not ledger.has_steps():
        raise wrong_value(
            "ledger", f"The ledger of {path} has no steps yet. If the run is in progress, try again later."
        )
    return ledger


def interval_in(note: Mapping[str, Any], folder: Path) -> int:
    """Returns the greatest number of steps that a row of a stream covers.

    Args:
        note: Content of its `ledger.json`.
        folder: Output folder of a trainer.

    Raises:
        ValueError: If the recorded number is invalid.
    """
    return whole_number(note.get("interval_steps", 1), f"interval_steps in {folder / 'ledger' / 'ledger.json'}", 1)


def read_description(folder: str | Path) -> dict[str, Any]:
    """Reads a run's description; empty if there is none.

    Args:
        folder: Output folder of a trainer.

    Returns:
        Result of `describe_run`.

    Raises:
        ValueError: If there is no such run.
    """
    description = read_note(Path(folder)).get("run", {})
    return description if isinstance(description, dict) else {}


def newest_run(folder: str | Path) -> Path:
    """Returns the folder itself if it is a run, else the most recently written run in it, else the folder.

    Args:
        folder: Output folder of a trainer, or a parent of several, such as the tasks of a continual run.
    """
    path = Path(folder)
    if (path / "ledger" / "ledger.json").is_file():
        return path
    return max(runs_within(path), key=last_written, default=path)


def last_written(run: Path) -> float:
    """Returns when a run's ledger last grew, in seconds since the epoch."""
    return max(path.stat().st_mtime for path in [run / "ledger" / "ledger.json", *(run / "ledger" / "clock").glob("*")])


def read_note(folder: Path) -> dict[str, Any]:
    """Reads the content of a run's `ledger.json`.

    Args:
        folder: Output folder of a trainer.

    Raises:
        ValueError: If there is no such run, or the file is damaged.
    """
    if not folder.is_dir():
        raise wrong_value(
            "folder", f"Folder {folder} does not exist: pass the output folder of a run (training.output_dir)."
        )
    path = folder / "ledger" / "ledger.json"
    if not path.is_file():
        runs = ", ".join(map(str, runs_within(folder)))
        choice = f"one of the runs in it: {runs}." if runs else "the output folder of a run (training.output_dir)."
        raise InvalidValueError(
            f"{folder} is not the folder of a run: it has no ledger/ledger.json. Pass {choice}", option="folder"
        )
    try:
        note = load_json(path)
        reason = "it is not a JSON object"
    except ValueError as error:
        note, reason = None, str(error)
    if not isinstance(note, dict):
        hint = f'replace its content by {{"format": {FORMAT_VERSION}}} to read the tables of the run'
        raise InvalidValueError(f"{path} is damaged ({reason}): {hint}.", option=path.name, found=reason, hint=hint)
    return note
