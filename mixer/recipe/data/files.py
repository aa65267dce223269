"""Files of rows on this machine: which there are, of which format, and how they are read."""

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
# Words such as None and NA are words: only an empty cell has no value.
_TABLE: Mapping[str, Any] = {"keep_default_na": False, "na_values": [""]}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {".csv": _TABLE, ".tsv": {**_TABLE, "sep": "\t"}}
_COMPRESSED = (".gz", ".bz2", ".xz")
_FAILURES = (DatasetsError, OSError, ValueError, TypeError, KeyError, StopIteration)
KNOWN = f"{', '.join(_BUILDERS)} (compressed too: {', '.join(_COMPRESSED)})"


def suffix_of(path: Path) -> str | None:
    """Gives the suffix that tells a file's format, in small letters.

    Args:
        path: The file.

    Returns:
        One such as `.jsonl`, for `rows.jsonl.gz` too; `None` if the format is not known.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _BUILDERS else None


def files_in(folder: Path, recursive: bool = False) -> list[Path]:
    """Lists the files of known formats in a folder.

    Args:
        folder: The folder.
        recursive: Whether to look into the folders in it, but for hidden ones.

    Returns:
        They, in the order of their names.
    """
    found = folder.rglob("*") if recursive else folder.iterdir()
    files = (file for file in found if suffix_of(file) is not None and file.is_file())
    return sorted(file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def read_files(
    files: Sequence[Path], called: str, path: Path, *, streaming: bool = False, rows: TextRows = "line"
) -> Any:
    """Reads files of one format, in their order.

    Args:
        files: The files, at least one.
        called: What asks for them, for errors.
        path: Where they were looked for, for errors.
        streaming: Whether rows are read as they are asked for.
        rows: What of a text file is a row.

    Returns:
        A `datasets.Dataset`, or `datasets.IterableDataset` where streaming.

    Raises:
        ValueError: If a format is not known, files are of several formats, one cannot be read, or `rows` is given for
            files that have rows.
    """
    suffix = _common_suffix(files, called, path)
    if rows != "line" and suffix != ".txt":
        raise ValueError(
            f"{called}: rows={rows!r} is for text files (.txt), and {files[0].name!r} is none: leave it out."
        )
    try:
        return _read(files, suffix, streaming, rows)
    except _FAILURES as error:
        broken, why = (files[0], error) if len(files) == 1 else _find_broken(files, suffix, called, path, error)
        cause = why.__cause__ or why
        told = f"{type(cause).__name__}: {str(cause).splitlines()[0]}" if str(cause) else type(cause).__name__
        raise ValueError(
            f"{called}: {str(broken)!r} cannot be read as {suffix[1:]} ({told}). It is empty, cut off, "
            "of another format, or its columns are not those of the files before: mend it, or leave it out."
        ) from error


def _common_suffix(files: Sequence[Path], called: str, path: Path) -> str:
    """Gives the suffix of all files; those that are read alike go together."""
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
    """Finds the first file that cannot be read by itself; refuses one whose columns are not those of the first."""
    columns: dict[str, Any] = {}
    for file in files:
        try:
            own = dict(_read([file], suffix, streaming=False).features)
        except _FAILURES as why:
            return file, why
        columns = columns or own
        if own != columns:
            raise ValueError(
                f"{called}: the columns of {str(file)!r} are {_told(own)}, and those of {files[0].name!r} "
                f"{_told(columns)}. Give files of the same columns, or a stream each."
            ) from error
    return path, error


def _told(columns: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} ({getattr(feature, 'dtype', type(feature).__name__)})" for name, feature in columns.items()
    )


def _read(files: Sequence[Path], suffix: str, streaming: bool, rows: TextRows = "line") -> Any:
    names = [str(file) for file in files]
    options = _OPTIONS.get(suffix, {})
    options = {**options, "sample_by": rows} if suffix == ".txt" else options
    read: Any = datasets.load_dataset(
        _BUILDERS[suffix], data_files=names, split="train", streaming=streaming, **options
    )
    return _with_whole_numbers(read) if suffix in (".csv", ".tsv") and not streaming else read


def _with_whole_numbers(table: datasets.Dataset) -> datasets.Dataset:
    """Makes whole numbers again of those that were read as fractions for the empty cells beside them."""
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
