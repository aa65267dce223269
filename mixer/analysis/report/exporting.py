"""Folders and names of the files that a report is exported to."""

import re
from collections.abc import Collection
from pathlib import Path

_LONGEST_NAME = 80


def made_folder(path: str | Path, parameter: str) -> Path:
    """Makes a folder if it is not there.

    Args:
        path: The folder.
        parameter: What the user calls it.

    Returns:
        The folder.

    Raises:
        ValueError: If there is a file of that name.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{parameter} must be a folder, but {folder} is a file: give another name.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def file_name(text: str, taken: Collection[str] = ()) -> str:
    """Names a file after something that may have any name.

    Args:
        text: What it is named after.
        taken: Names that are given already.

    Returns:
        A name of small letters, digits and hyphens, another than those that are taken.

    Example:
        >>> file_name("Loss: ../../C++ <b>"), file_name("数学", ["unnamed"])
        ('loss-c-b', 'unnamed-2')
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-") or "unnamed"
    number = 1
    while (numbered := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return numbered
