"""Reads files of rows on this machine, compressed ones too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import datasets
import pyarrow
from datasets.exceptions import DatasetsError

TextRows = Literal["line", "paragraph", "document"]

# The builder of `datasets` for each suffix.
_BUILDERS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".arrow": "arrow",
}
# Only an empty cell has no value: None and NA are words.
_TABLE: Mapping[str, Any] = {"keep_default_na": False, "na_values": [""]}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {".csv": _TABLE, ".tsv": {**_TABLE, "sep": "\t"}}
_COMPRESSED = (".gz", ".bz2", ".xz")
_FAILURES = (DatasetsError, OSError, ValueError, TypeError, KeyError, StopIteration)
KNOWN = f"{', '.join(_BUILDERS)} (compressed too: {', '.join(_COMPRESSED)})"


def suffix_of(path: Path) -> str | None:
    """Returns the suffix of a known format in lower case, `.jsonl` for `rows.jsonl.gz` too; else `None`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _BUILDERS else None


def files_in(folder: Path, recursive: bool = False) -> list[Path]:
    """Lists the files of known formats in a folder, sorted by name.

    Args:
        folder: The folder.
        recursive: Whether to include subfolders, except hidden ones.
    """
    paths = folder.rglob("*") if recursive else folder.iterdir()
    files = (file for file in paths if suffix_of(file) is not None and file.is_file())
    return sorted(file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def read_files(
    files: Sequence[Path], called: str, path: Path, *, streaming: bool = False, rows: TextRows = "line"
) -> Any:
    """Reads files of one format, in order.

    Args:
        files: The files, at least one.
        called: Name of the data in errors.
        path: The user's path, for errors.
        streaming: Whether to read rows on demand.
        rows: Unit of a row in a text file.

    Returns:
        A `datasets.Dataset`, or a `datasets.IterableDataset` if streaming.

    Raises:
        ValueError: If a format is unknown, files have different formats, one cannot be read, or `rows` is set for
            files other than text.
    """
    suffix = _common_suffix(files, called, path)
    if rows != "line" and suffix != ".txt":
        raise ValueError(
            f"{called}: rows={rows!r} is for text files (.txt), and {files[0].name!r} is none: leave it out."
        )
    try:
        return _read(files, suffix, streaming, rows)
    except _FAILURES as error:
        broken, failure = (files[0], error) if len(files) == 1 else _find_broken(files, suffix, called, path, error)
        cause = failure.__cause__ or failure
        text = f"{type(cause).__name__}: {str(cause).splitlines()[0]}" if str(cause) else type(cause).__name__
        raise ValueError(
            f"{called}: {str(broken)!r} cannot be read as {suffix[1:]} ({text}). It is empty, cut off, of another "
            "format, or has other columns than the files before: repair it, or leave it out."
        ) from error


def _common_suffix(files: Sequence[Path], called: str, path: Path) -> str:
    by_suffix = {suffix_of(file): file for file in reversed(files)}
    if None in by_suffix:
        raise ValueError(f"{called}: {by_suffix[None].name!r} is of no known format: it must end in {KNOWN}.")
    suffixes = sorted(suffix for suffix in by_suffix if suffix is not None)
    if len(suffixes) > 1 and not set(suffixes) <= {".json", ".jsonl"}:
        named = ", ".join(f"{suffix} ({by_suffix[suffix].name})" for suffix in suffixes)
        raise ValueError(
            f"{called}: {str(path)!r} mixes the formats {named}. Give one file, a pattern such as '*{suffixes[0]}', "
            "or a folder with files of one format."
        )
    return suffixes[0]


def _find_broken(
    files: Sequence[Path], suffix: str, called: str, path: Path, error: Exception
) -> tuple[Path, Exception]:
    """Finds the first file that cannot be read; refuses one with other columns than the first."""
    columns: dict[str, Any] = {}
    for file in files:
        try:
            own = dict(_read([file], suffix, streaming=False).features)
        except _FAILURES as failure:
            return file, failure
        columns = columns or own
        if own != columns:
            raise ValueError(
                f"{called}: the columns of {str(file)!r} are {_in_words(own)}, and those of {files[0].name!r} "
                f"{_in_words(columns)}. Give files with the same columns, or a stream for each."
            ) from error
    return path, error


def _in_words(columns: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} ({getattr(kind, 'dtype', type(kind).__name__)})" for name, kind in columns.items())


def _read(files: Sequence[Path], suffix: str, streaming: bool, rows: TextRows = "line") -> Any:
    options = {"sample_by": rows} if suffix == ".txt" else _OPTIONS.get(suffix, {})
    options = {**options, "data_files": [str(file) for file in files], "streaming": streaming}
    table: Any = datasets.load_dataset(_BUILDERS[suffix], split="train", **options)
    return _with_whole_numbers(table) if suffix in (".csv", ".tsv") and not streaming else table


def _with_whole_numbers(table: datasets.Dataset) -> datasets.Dataset:
    """Restores whole numbers that were read as floats because of empty cells beside them."""
    for name, feature in table.features.items():
        column = table.data.column(name)
        if getattr(feature, "dtype", None) == "float64" and column.null_count and _is_whole(column):
            table = table.cast_column(name, datasets.Value("int64"))
    return table


def _is_whole(column: Any) -> bool:
    try:
        column.cast("int64")
    except pyarrow.ArrowInvalid:
        return False
    return True
