"""A buffer's state on disk: one file of arrays, and one of plain data that says what they are."""

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mixer.utils.files import newer_version, read_json, write_json
from mixer.utils.validation import DAMAGE, check_plain, refusing_damage

Parts = Mapping[str, Mapping[str, Any]]


class Saved(Protocol):
    """What a saved buffer is compared with."""

    capacity: int

    @property
    def description(self) -> Mapping[str, Any]:
        """What has to be the same, by name."""


def begin_writing(path: Path) -> None:
    """Declares that a state is about to be written, so that what is written beside it is not taken for the old one's.

    Args:
        path: The files' path without a suffix.
    """
    path.with_suffix(".json").unlink(missing_ok=True)


def write_state(path: Path, state: Mapping[str, Any], parts: Parts) -> None:
    """Writes a state, so that it is there whole or not at all.

    Args:
        path: The files' path without a suffix.
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
        path: The files' path without a suffix.

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
    """Reads arrays of numbers that take no more room in memory than in the file."""
    check_plain(path)
    with zipfile.ZipFile(path) as file:
        entries = file.infolist()
    is_packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if is_packed or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError("its arrays are compressed, as they are never written")
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def check_saved(state: Mapping[str, Any], buffer: Saved, format_version: int) -> None:
    """Refuses the state of another kind of buffer.

    Args:
        state: The plain data that was read.
        buffer: The buffer that is to take it up.
        format_version: What this version reads.

    Raises:
        ValueError: If something differs; what was saved and what is there are named.
    """
    if state.get("format") != format_version:
        raise ValueError(newer_version("the buffer", state.get("format"), format_version))
    for name, own in buffer.description.items():
        if state.get(name) != own:
            raise ValueError(f"the buffer was saved with {name}={state.get(name)!r} and has {name}={own!r} now")
