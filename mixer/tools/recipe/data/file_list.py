"""The files that rows come from: which are chosen, what was read of each, and which are unlike the others."""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
from transformers.utils import logging

from mixer.utils.errors import wrong_value
from mixer.utils.files import read_json, write_json
from mixer.utils.text import first_of, listed, printable, short_number

logger = logging.get_logger(__name__)

_File = TypeVar("_File", Path, str, Path | str)
_KEPT = "files_read.json"  # beside the rows in the cache
Counts = dict[int, tuple[int, set[str]]]  # the rows of a file and its columns with a value, by its place
_FEWEST = 3  # files, of which one can be unlike the others
_MOST_TIMES, _MOST_DEVIATIONS = 10.0, 5.0  # of the median, and of the usual distance from it


@dataclass(frozen=True)
class Patterns:
    """Which files of a folder, a pattern or a list are read.

    Args:
        include: Patterns of names or of ends of paths (`*.txt`, `part/*.txt`), of which a file must match one.
        exclude: Patterns of which it must match none.
    """

    include: Sequence[str] | None = None
    exclude: Sequence[str] = ()

    def chosen(self, files: Sequence[_File]) -> list[_File]:
        """Returns the files that are read.

        Raises:
            InvalidValueError: If a pattern matches no file, or no file is left.
        """
        for option, patterns in (("include", self.include or ()), ("exclude", self.exclude)):
            idle = [pattern for pattern in patterns if not any(_matches(file, [pattern]) for file in files)]
            if idle and files:
                names = first_of([PurePath(file).name for file in files])
                raise wrong_value(option, f"{idle[0]!r} matches none of the files, {listed(names)}.", found=idle[0])
        included = [file for file in files if self.include is None or _matches(file, self.include)]
        chosen = [file for file in included if not _matches(file, self.exclude)]
        if files and not chosen:
            raise wrong_value(
                "include", f"and exclude leave none of {len(files)} files.", found=list(self.include or ())
            )
        return chosen


def _matches(file: Path | str, patterns: Collection[str]) -> bool:
    return any(PurePath(file).match(pattern) for pattern in patterns)


@dataclass(frozen=True)
class FileRead:
    """A file of rows.

    Args:
        name: Its name, without the folder.
        num_bytes: Its size.
        num_rows: Number of its rows; `None` if they are read on demand.
        columns: The columns with a value in one of its rows; empty if they are read on demand.
    """

    name: str
    num_bytes: int
    num_rows: int | None
    columns: Sequence[str]


def kept_files(files: Sequence[Path], folder: Path, counts: Counts) -> list[FileRead]:
    """Returns what was read of files, and keeps it in a folder of the cache, from which later starts take the rows.

    Args:
        files: The files.
        folder: The folder.
        counts: What was counted now; empty if the rows come from the cache, or are read on demand.
    """
    sizes = [(file.name, file.stat().st_size) for file in files]
    if not counts:
        return _kept_in(folder) or [FileRead(*size, None, ()) for size in sizes]
    by_place = [counts.get(place, (0, set[str]())) for place in range(len(files))]
    read = [FileRead(*size, rows, sorted(names)) for size, (rows, names) in zip(sizes, by_place, strict=True)]
    write_json(folder / _KEPT, {"files": [asdict(file) for file in read]})
    return read


def files_of(dataset: Any) -> list[FileRead]:
    """Returns the files that the rows of a data set come from; none if that is not known."""
    cached = getattr(dataset, "cache_files", None)
    return _kept_in(Path(cached[0]["filename"]).parent) if cached else []


def _kept_in(folder: Path) -> list[FileRead]:
    if not (folder / _KEPT).is_file():
        return []
    return [FileRead(**file) for file in read_json(folder / _KEPT)["files"]]


def is_first_rank() -> bool:
    """Returns whether this process tells of files, which all ranks read."""
    return int(os.environ.get("RANK", "0")) == 0


def tell_of_files(called: str, files: Sequence[FileRead]) -> None:
    """Tells which files are read, and which of them are much unlike the others; on the first rank alone."""
    if not is_first_rank():
        return
    logger.warning("%s: %s.", called, printable(in_words(files)))
    if others := unlike(files):
        reasons = listed(first_of([f"{name} ({why})" for name, why in others.items()]))
        names = ", ".join(f'"{name}"' for name in list(others)[:3])
        text = "%s: very different from the other files: %s. If they are no data, leave them out: data.exclude: [%s]."
        logger.warning(text, called, printable(reasons), printable(names))


def in_words(files: Sequence[FileRead]) -> str:
    """Describes files: their number, first names, size and rows."""
    names, size = listed(first_of([file.name for file in files])), sum(file.num_bytes for file in files)
    rows = _known_rows(files)
    counted = f", {sum(rows):,} rows" if len(rows) == len(files) else ""
    return f"{len(files):,} file{'s' * (len(files) != 1)} ({names}), {short_number(size)} bytes{counted}"


def _known_rows(files: Sequence[FileRead]) -> list[int]:
    return [file.num_rows for file in files if file.num_rows is not None]


def unlike(files: Sequence[FileRead]) -> dict[str, str]:
    """Finds files much unlike the others in size, rows or columns.

    Returns:
        By name, in what. A size, or a number of rows, is so beyond ten times the median, or a tenth of it, if it is
        also five times as far from it, in logarithms, as usual.
    """
    if len(files) < _FEWEST:
        return {}
    why: dict[str, list[str]] = {}
    for unit, values in (("bytes", [file.num_bytes for file in files]), ("rows", _known_rows(files))):
        if len(values) < len(files):
            continue
        logs = np.log(np.array(values, dtype=np.float64) + 1.0)
        distances = np.abs(logs - np.median(logs))
        bound = max(np.log(_MOST_TIMES), _MOST_DEVIATIONS * float(np.median(distances)))
        for place in np.flatnonzero(distances > bound).tolist():
            why.setdefault(files[place].name, []).append(f"{values[place]:,} {unit}, {np.median(values):,.0f} usual")
    usual, times = Counter(tuple(file.columns) for file in files).most_common(1)[0]
    others = [file for file in files if tuple(file.columns) != usual] if times > len(files) / 2 else []
    for file in others:
        why.setdefault(file.name, []).append(f"columns {', '.join(file.columns)}; usual are {', '.join(usual)}")
    return {name: "; ".join(reasons) for name, reasons in why.items()}
