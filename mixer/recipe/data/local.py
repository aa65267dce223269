"""Data on this machine: a file, a pattern of files, a folder of files, a folder of `save_to_disk`."""

import glob
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets

from mixer.recipe.data.files import KNOWN, TextRows, files_in, read_files
from mixer.recipe.data.splits import take_split

# As data sets on the hub are laid out: names of files, or of the folders that they are in.
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_PATTERN = re.compile(r"[*?\[]")


def is_pattern(path: str) -> bool:
    """Says whether a path is a pattern of several.

    Args:
        path: The path.

    Returns:
        Whether it has `*`, `?` or `[`, and is not there as it stands.
    """
    return _PATTERN.search(path) is not None and not Path(path).exists()


def load_local(
    path: str, splits: Sequence[str], called: str, streaming: bool = False, rows: TextRows = "line"
) -> list[Any]:
    """Loads splits of local data.

    Args:
        path: A file, a folder or a pattern (`data/*.jsonl`, `**` for folders in folders), which are there.
        splits: Names of splits, slices too.
        called: What asks for them, for errors.
        streaming: Whether rows are read as they are asked for.
        rows: What of a text file is a row.

    Returns:
        A data set each.

    Raises:
        FileNotFoundError: If a pattern matches nothing, or a folder has no file of a known format.
        ValueError: If files cannot be read, there is no such split, or `rows` is given for files that are no text.
    """
    folder = Path(path)
    if folder.is_dir() and ((folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()):
        if rows != "line":
            raise ValueError(f"{called}: rows={rows!r} is for text files (.txt), and {path!r} is none: leave it out.")
        saved = _load_saved(folder, called)
        return [
            take_split(split, list(saved), lambda name: _as_read(saved[name], streaming), called, streaming)
            for split in splits
        ]
    files = _files_by_split(path, called)
    return [
        take_split(
            split,
            list(files),
            lambda name: read_files(files[name], called, folder, streaming=streaming, rows=rows),
            called,
            streaming,
        )
        for split in splits
    ]


def _load_saved(folder: Path, called: str) -> dict[str, Any]:
    try:
        saved = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{called}: the folder {str(folder)!r} cannot be read as one of save_to_disk ({error}). Save the data set "
            "again, or give files."
        ) from error
    return dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}


def _as_read(dataset: Any, streaming: bool) -> Any:
    return dataset.to_iterable_dataset() if streaming else dataset


def _files_by_split(path: str, called: str) -> dict[str, list[Path]]:
    """Finds the files; those of a folder are told apart by their names."""
    if Path(path).is_file():
        return {"train": [Path(path)]}
    if not Path(path).is_dir():
        matched = sorted(Path(name) for name in glob.glob(path, recursive=True))
        files = [file for file in matched if file.is_file()]
        if not files:
            raise FileNotFoundError(
                f"{called}: the pattern {str(Path(path).absolute())!r} matches no file. Folders in folders are matched "
                "by '**'."
            )
        return {"train": files}
    files = files_in(Path(path), recursive=True)
    if not files:
        raise FileNotFoundError(
            f"{called}: the folder {str(Path(path).absolute())!r} has no file that ends in {KNOWN}, and is none of "
            "save_to_disk."
        )
    return _by_names(files, Path(path), called)


def _by_names(files: Sequence[Path], folder: Path, called: str) -> dict[str, list[Path]]:
    by_split: dict[str | None, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_of(file.relative_to(folder)), []).append(file)
    named = {split: own for split, own in by_split.items() if split is not None}
    if not named:
        return {"train": list(files)}
    if None in by_split:
        raise ValueError(
            f"{called}: of the files in {str(folder)!r} some name a split ({', '.join(_examples(named))}) and some do "
            f"not, such as {by_split[None][0].name!r}. Rename those, or give a pattern of the files that are meant."
        )
    return named


def _split_of(file: Path) -> str | None:
    words = re.split(r"[^a-z]+", str(file).lower())
    return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)


def _examples(named: dict[str, list[Path]]) -> list[str]:
    return [f"{split}: {own[0].name!r}" for split, own in named.items()]
