"""Data in files: CSV, JSON lines, Parquet."""

from pathlib import Path

import datasets
from datasets.exceptions import DatasetsError

from tasks.sources.numbered import with_numbered_labels
from tasks.sources.splits import Splits, hold_out

_FORMATS = {".csv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
_FAILURES = (DatasetsError, OSError, ValueError, TypeError, KeyError, StopIteration)


def local_files(
    path: Path | str,
    evaluation: Path | str | None = None,
    *,
    label_column: str | None = None,
    evaluation_share: float = 0.2,
    seed: int = 0,
) -> Splits:
    """Loads files through `datasets.load_dataset`.

    Args:
        path: A file, or a folder with files of one format, which are read in the order of their names.
        evaluation: The same for evaluation; `None` holds a share of the data out.
        label_column: Column of the classes, which becomes `label` and is numbered if they are words.
        evaluation_share: Which share is held out if `evaluation` is `None`.
        seed: Seed of that draw.

    Returns:
        Two `datasets.Dataset`.

    Raises:
        FileNotFoundError: If there is nothing at a path.
        ValueError: If a file cannot be read, a format is not known, a folder mixes formats, or there is no such column.
    """
    loaded = _load(Path(path))
    if evaluation is None:
        parts = hold_out(len(loaded), evaluation_share, seed)
        splits = Splits(*(loaded.select(indices) for indices in parts))
    else:
        splits = Splits(loaded, _load(Path(evaluation)))
    return with_numbered_labels(splits, label_column)


def _load(path: Path) -> datasets.Dataset:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in _FORMATS)
    else:
        files = [path] if path.is_file() else []
    if not files:
        raise FileNotFoundError(
            f"local_files: there is no file at {str(path)!r}. Give a file or a folder of files {', '.join(_FORMATS)}."
        )
    formats = {_FORMATS.get(file.suffix.lower(), file.suffix) for file in files}
    if not formats <= set(_FORMATS.values()):
        raise ValueError(f"local_files: {path.name!r} is of no known format: it must end in {', '.join(_FORMATS)}.")
    if len(formats) > 1:
        raise ValueError(
            f"local_files: the folder {str(path)!r} mixes the formats {sorted(formats)}. Give one file, or a folder "
            "with files of one format."
        )
    return _read(path, files, formats.pop())


def _read(path: Path, files: list[Path], kind: str) -> datasets.Dataset:
    try:
        return _load_all(files, kind)
    except _FAILURES as error:
        broken, why = (path, error) if len(files) == 1 else _find_broken(path, files, kind, error)
        cause = why.__cause__ or why
        told = f"{type(cause).__name__}: {str(cause).splitlines()[0]}" if str(cause) else type(cause).__name__
        raise ValueError(
            f"local_files: {str(broken)!r} cannot be read as {kind} ({told}). It is empty, cut off, "
            "of another format, or its columns are not those of the files before: mend it, or leave it out."
        ) from error


def _find_broken(path: Path, files: list[Path], kind: str, error: Exception) -> tuple[Path, Exception]:
    """Finds the first file that cannot be read by itself; the folder if they only do not fit together."""
    for file in files:
        try:
            _load_all([file], kind)
        except _FAILURES as own:
            return file, own
    return path, error


def _load_all(files: list[Path], kind: str) -> datasets.Dataset:
    return datasets.load_dataset(kind, data_files=[str(file) for file in files], split="train")
