"""State of a buffer on disk: an `.npz` file of arrays, and a JSON file that describes them."""

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.files import newer_version, read_json, write_json
from mixer.utils.validation import DAMAGE, check_plain, refusing_damage

Parts = Mapping[str, Mapping[str, Any]]


def begin_writing(path: Path) -> None:
    """Removes the JSON file of an old state, so that new arrays are never taken for its own; `path` has no suffix."""
    path.with_suffix(".json").unlink(missing_ok=True)


def write_state(path: Path, state: Mapping[str, Any], parts: Parts) -> None:
    """Writes a state atomically.

    Args:
        path: Path of the files without a suffix.
        state: Plain data.
        parts: By part and name: arrays, or plain data.
    """
    arrays = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
    plain = {name: value for name, value in arrays.items() if not isinstance(value, np.ndarray)}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".npz.tmp")
    with temporary.open("wb") as file:
        np.savez(file, **{name: value for name, value in arrays.items() if name not in plain})
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path.with_suffix(".npz"))
    write_json(path.with_suffix(".json"), {**state, "plain": plain, "parts": list(parts)}, sealed=True)


def read_state(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Reads a state.

    Args:
        path: Path of the files without a suffix.

    Returns:
        The plain data, and the parts.

    Raises:
        ValueError: If a file is missing or torn; it is named.
    """
    state = read_json(path.with_suffix(".json"))
    if not {"format", "plain", "parts"} <= state.keys():
        raise ValueError(f"{path.with_suffix('.json')} holds something else than a buffer. Take an earlier checkpoint.")
    arrays_path = path.with_suffix(".npz")
    try:
        arrays = _read_arrays(arrays_path)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, *DAMAGE) as error:
        raise ValueError(f"{arrays_path} is missing or torn ({error}). Take an earlier checkpoint.") from None
    with refusing_damage(f"{path.with_suffix('.json')}"):
        parts: dict[str, dict[str, Any]] = {name: {} for name in state["parts"]}
        for name, value in (arrays | state["plain"]).items():
            part, _, own = name.partition("/")
            parts[part][own] = value
    return state, parts


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    check_plain(path)
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def check_saved(state: Mapping[str, Any], description: Mapping[str, Any], format_version: int) -> None:
    """Refuses the state of a different kind of buffer.

    Args:
        state: The plain data.
        description: `Memory.description` of the buffer that loads it.
        format_version: The supported format.

    Raises:
        ValueError: If they differ; both values are named.
    """
    if state.get("format") != format_version:
        raise ValueError(newer_version("the buffer", state.get("format"), format_version))
    for name, own in description.items():
        if state.get(name) != own:
            raise ValueError(f"the buffer was saved with {name}={state.get(name)!r} and has {name}={own!r} now")
