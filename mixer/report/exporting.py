"""Folders and names of exported files."""

import re
from collections.abc import Collection
from pathlib import Path

_LONGEST_NAME = 80


def made_folder(path: str | Path, parameter: str) -> Path:
    """Makes a folder if it does not exist.

    Args:
        path: The folder.
        parameter: Name of the option, for the error.

    Raises:
        ValueError: If there is a file of that name.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{parameter} must be a folder, but {folder} is a file: give another name.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def file_name(text: str, taken: Collection[str] = ()) -> str:
    """Makes a file name of any text.

    Args:
        text: The text.
        taken: Names that are in use.

    Returns:
        A name of small letters, digits and hyphens that is not in use.

    Example:
        >>> file_name("Loss: ../../C++ <b>"), file_name("数学", ["unnamed"])
        ('loss-c-b', 'unnamed-2')
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-") or "unnamed"
    number = 1
    while (numbered := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return numbered
