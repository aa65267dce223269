"""Local data: a file, a pattern of files, a folder of files, or a folder of `save_to_disk`."""

import glob
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets

from mixer.recipe.data.files import KNOWN, TextRows, files_in, read_files
from mixer.recipe.data.splits import take_split

# Names of files and folders for each split, as on the hub.
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_PATTERN = re.compile(r"[*?\[]")


def is_pattern(path: str) -> bool:
    """Returns whether a path that does not exist is a pattern: it has `*`, `?` or `[`."""
    return _PATTERN.search(path) is not None and not Path(path).exists()


def load_local(
    path: str, splits: Sequence[str], called: str, streaming: bool = False, rows: TextRows = "line"
) -> list[Any]:
    """Loads splits of local data.

    Args:
        path: An existing file or folder, or a pattern (`data/*.jsonl`, `**` for subfolders).
        splits: Names of splits, or slices.
        called: Name of the data in errors.
        streaming: Whether to read rows on demand.
        rows: Unit of a row in a text file.

    Returns:
        One data set per split.

    Raises:
        FileNotFoundError: If a pattern matches nothing, or a folder has no file of a known format.
        ValueError: If files cannot be read, the split does not exist, or `rows` is set for files other than text.
    """
    folder = Path(path)
    if folder.is_dir() and ((folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()):
        if rows != "line":
            raise ValueError(f"{called}: rows={rows!r} is for text files (.txt), and {path!r} is none: leave it out.")
        saved = _load_saved(folder, called, streaming)
        return [take_split(split, list(saved), saved.__getitem__, called, streaming) for split in splits]
    files = _files_by_split(path, called)
    read = partial(read_files, called=called, path=folder, streaming=streaming, rows=rows)
    return [take_split(split, list(files), lambda name: read(files[name]), called, streaming) for split in splits]


def _load_saved(folder: Path, called: str, streaming: bool) -> dict[str, Any]:
    try:
        saved: Any = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{called}: the folder {str(folder)!r} cannot be read as one of save_to_disk ({error}). Save the data set "
            "again, or give files."
        ) from error
    parts = dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    return {name: part.to_iterable_dataset() for name, part in parts.items()} if streaming else parts


def _files_by_split(path: str, called: str) -> dict[str, list[Path]]:
    place, shown = Path(path), repr(str(Path(path).absolute()))
    if place.is_dir():
        files = files_in(place, recursive=True)
        if not files:
            raise FileNotFoundError(
                f"{called}: the folder {shown} has no file that ends in {KNOWN}, and is none of save_to_disk."
            )
        return _by_names(files, place, called)
    matched = [place] if place.is_file() else sorted(Path(name) for name in glob.glob(path, recursive=True))
    files = [file for file in matched if file.is_file()]
    if not files:
        raise FileNotFoundError(f"{called}: the pattern {shown} matches no file. '**' matches subfolders.")
    return {"train": files}


def _by_names(files: Sequence[Path], folder: Path, called: str) -> dict[str, list[Path]]:
    """Assigns files to splits by the words in their paths; without any such word, all are `train`."""
    by_split: dict[str, list[Path]] = {}
    unnamed: list[Path] = []
    for file in files:
        words = re.split(r"[^a-z]+", str(file.relative_to(folder)).lower())
        split = next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)
        (unnamed if split is None else by_split.setdefault(split, [])).append(file)
    if not by_split:
        return {"train": unnamed}
    if unnamed:
        examples = ", ".join(f"{split}: {own[0].name!r}" for split, own in by_split.items())
        raise ValueError(
            f"{called}: of the files in {str(folder)!r} some name a split ({examples}) and some do not, such as "
            f"{unnamed[0].name!r}. Rename those, or give a pattern of the right files."
        )
    return by_split
