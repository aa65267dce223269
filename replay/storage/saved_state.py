"""State of a buffer on disk: an `.npz` file of arrays, and a JSON file that describes them."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mixer.utils.files import read_json, write_json
from mixer.utils.validation import DAMAGE, check_plain, refusing_damage
from replay.storage.row_file import damaged_file, whole_file

Parts = Mapping[str, Mapping[str, Any]]


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
    with whole_file(path.with_suffix(".npz")) as file:
        np.savez(file, **{name: value for name, value in arrays.items() if name not in plain})
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
        raise damaged_file(str(path.with_suffix(".json")), "is no buffer")
    arrays_path = path.with_suffix(".npz")
    try:
        check_plain(arrays_path)
        with np.load(arrays_path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, *DAMAGE) as error:
        raise damaged_file(str(arrays_path), f"is missing or torn ({error})") from None
    with refusing_damage(f"{path.with_suffix('.json')}"):
        parts: dict[str, dict[str, Any]] = {name: {} for name in state["parts"]}
        for name, value in (arrays | state["plain"]).items():
            part, _, own = name.partition("/")
            parts[part][own] = value
    return state, parts
