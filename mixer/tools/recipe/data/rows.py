"""Rows of CSV, TSV and JSON files as they are written: no text is taken for a number or a date."""

import bz2
import copy
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import datasets
import pyarrow
from datasets.builder import Key
from datasets.table import table_cast
from datasets.utils.file_utils import xopen

from mixer.tools.recipe.data.suffixes import Spot, UnreadableError, is_url, naming
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.text import shortened
from mixer.utils.validation import with_unique_keys

# "string", "int64", "float64" or "bool"; "json" for objects, which stay as they are; a list of one of these; `None`
# while there is no value.
Kind = Any
_SCALARS = {str: "string", int: "int64", float: "float64", bool: "bool", dict: "json"}
_WORDS = {
    "string": "a text",
    "int64": "a whole number",
    "float64": "a fraction",
    "bool": "true or false",
    "json": "an object",
}


def add_kinds(kinds: dict[str, Kind], row: Mapping[str, Any]) -> None:
    """Adds a row to the kinds of the columns of the rows before.

    Raises:
        ValueError: If a column cannot have its value.
    """
    for name, value in row.items():
        try:
            kinds[name] = _merged(kinds.get(name), _kind_of(value))
        except ValueError as error:
            raise InvalidValueError(f"column {name!r} has {error}", option=name) from None


def feature_of(kind: Kind, is_stored: bool = False) -> Any:
    """Returns the feature of `datasets` for a kind.

    Args:
        kind: The kind.
        is_stored: Whether the feature is that of `stored` values, in which an object is a text.
    """
    if isinstance(kind, list):
        return datasets.List(feature_of(kind[0], is_stored))
    if kind == "json" and not is_stored:
        return datasets.Json()
    return datasets.Value("string" if kind == "json" else kind or "null")


def stored(value: Any, kind: Kind) -> Any:
    """Returns a value whose objects are texts in JSON."""
    if isinstance(kind, list) and value is not None:
        return value if isinstance(kind[0], str) and kind[0] != "json" else [stored(part, kind[0]) for part in value]
    return value if value is None or kind != "json" else json.dumps(value, ensure_ascii=False)


def is_of(value: Any, kind: Kind) -> bool:
    """Returns whether a settled kind has a value."""
    try:
        return value is None or settled(_merged(kind, _kind_of(value))) == kind
    except ValueError:
        return False


def settled(kind: Kind) -> Kind:
    """Returns a kind that holds what may still come in a stream: texts where nothing was."""
    return [settled(kind[0])] if isinstance(kind, list) else kind or "string"


def _kind_of(value: Any) -> Kind:
    if isinstance(value, list):
        kind = None
        parts = (min(value), max(value)) if set(map(type, value)) == {int} else value  # tokens are many
        for part in parts:
            kind = _merged(kind, _kind_of(part))
        return [kind]
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{value}, a whole number of more than 64 bits: put it in quotes, as a text")
    return _SCALARS.get(type(value))


def _merged(before: Kind, kind: Kind) -> Kind:
    if before is None or kind is None or before == kind:
        return before or kind
    if isinstance(before, list) and isinstance(kind, list):
        return [_merged(before[0], kind[0])]
    words = [_WORDS[part] if isinstance(part, str) else "a list" for part in (kind, before)]
    if {"a whole number", "a fraction"} == {*words}:
        return "float64"
    raise ValueError("{}, and {} before".format(*words))


VERSION = "2"  # raise it when the same files give other rows than before
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 10_000, 10 << 20
_OPEN: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda raw: io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd")),
}
_SEPARATORS = (";", "\t", "|", ",")
_LONGEST_CELL = 2**31 - 1

Row = dict[str, Any]
Line = tuple[int | str, Row, int]  # its place; its row; its length


@dataclass
class RowsConfig(datasets.BuilderConfig):  # type: ignore[misc]  # datasets has no types for it
    """What to read, beside `data_files`.

    Args:
        separator: What separates the cells of CSV; `None` for JSON.
        columns: The columns to read; `None` for all.
        is_chosen: Whether the user has named the separator.
    """

    separator: str | None = None
    columns: list[str] | None = None
    is_chosen: bool = False


class Rows(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """Reads rows into a cached table, or while streaming.

    Cells of CSV and TSV are texts. Values of JSON are what JSON says; those of all rows decide the types of columns,
    and in a stream those of the first rows.
    """

    BUILDER_CONFIG_CLASS = RowsConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[Any]:
        files = list(self.config.data_files["train"])
        self._is_streaming: bool = dl_manager.is_streaming
        find = self._kinds_of_values if self.config.separator is None else self._kinds_of_cells
        self._kinds: dict[str, Kind] = find(files)
        self.info.features = datasets.Features({name: feature_of(kind) for name, kind in self._kinds.items()})
        return [datasets.SplitGenerator(name="train", gen_kwargs={"files": files})]

    def _generate_tables(self, files: Sequence[str]) -> Iterator[tuple[Key, pyarrow.Table]]:
        for place, file in enumerate(files):
            for number, chunk in enumerate(self._chunks(file)):
                if self._is_streaming and self.config.separator is None:
                    self._check(file, chunk)
                yield Key(place, number), self._table([row for _, row, _ in chunk])

    def _kinds_of_cells(self, files: Sequence[str]) -> dict[str, Kind]:
        chosen: list[str] = []
        for file in files:
            with naming(file) as spot:
                texts = _texts(_lines(file, self.storage_options), spot)
                own = _header(csv.reader(texts, delimiter=self.config.separator, strict=True))
                if not self.config.is_chosen:
                    _check_separator(own, self.config.separator)
            own = own if self.config.columns is None else known(self.config.columns, own)
            chosen = chosen or own
            if sorted(own) != sorted(chosen):
                raise other_columns(file, own, files[0], chosen)
        return dict.fromkeys(chosen, "string")

    def _kinds_of_values(self, files: Sequence[str]) -> dict[str, Kind]:
        kinds: dict[str, Kind] = {}
        columns, seen = self.config.columns, dict[str, Any]()
        for file in files:
            before = list(kinds)
            for chunk in self._chunks(file):
                with naming(file) as spot:
                    for spot.place, row, _ in chunk:
                        seen.update(row)
                        add_kinds(kinds, self._own(row))
                if self._is_streaming:
                    break
            if before and len(before) < len(kinds) and columns is None:
                raise other_columns(file, list(kinds), files[0], before)
            if self._is_streaming and kinds:
                kinds = {name: settled(kind) for name, kind in kinds.items()}
                break
        if not seen:
            with naming(files[0]):
                raise ValueError("there are no rows")
        return {name: kinds[name] for name in known(columns or list(kinds), list(seen))}

    def _own(self, row: Row) -> Row:
        columns = self.config.columns
        return row if columns is None else {name: row[name] for name in columns if name in row}

    def _check(self, file: str, chunk: Sequence[Line]) -> None:
        """Refuses rows of a stream that do not fit the first ones."""
        with naming(file) as spot:
            for spot.place, row, _ in chunk:
                for name, value in self._own(row).items():
                    if not is_of(value, self._kinds.get(name)):
                        raise ValueError(
                            f"column {name!r} has {shortened(repr(value), 50)}, which the first rows of the stream "
                            "have not, and they decide what it holds: put a file with such values first in data.path, "
                            "leave the column out by data.columns, or set data.streaming to false"
                        )

    def _table(self, rows: Sequence[Row]) -> pyarrow.Table:
        features = datasets.Features({name: feature_of(kind, is_stored=True) for name, kind in self._kinds.items()})
        values = {name: [stored(row.get(name), kind) for row in rows] for name, kind in self._kinds.items()}
        table = pyarrow.Table.from_pydict(values, schema=features.arrow_schema)
        return table_cast(table, datasets.Features(self.info.features or {}).arrow_schema)

    def _chunks(self, file: str) -> Iterator[list[Line]]:
        separator = self.config.separator
        chunk: list[Line] = []
        size = 0
        with naming(file) as spot:
            texts = _texts(_lines(file, self.storage_options), spot)
            for line, row, length in _json_rows(texts, spot) if separator is None else _cells(texts, spot, separator):
                chunk.append((line, row, length))
                size += length
                if len(chunk) == _ROWS_AT_ONCE or size > _BYTES_AT_ONCE:
                    yield chunk
                    chunk, size = [], 0
        if chunk:
            yield chunk


def other_columns(file: str, columns: Sequence[str], first: str, expected: Sequence[str]) -> UnreadableError:
    """Makes the error of a file whose columns are not those of the first."""
    text = (
        f"the columns of {file!r} are {', '.join(columns)}, and those of {first!r} {', '.join(expected)}. If one "
        "of them is no data, leave it out (data.exclude). Else choose columns that all have (data.columns), or give a "
        "stream for each."
    )
    return UnreadableError(text, option=file, found=list(columns))


def known(wanted: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Returns the wanted columns.

    Raises:
        InvalidValueError: If there is none of that name.
    """
    if missing := [name for name in wanted if name not in columns]:
        raise wrong_value("columns", f": there is no {missing[0]!r}; there are {list(columns)}.", found=missing[0])
    return list(wanted)


def opened(file: str, storage_options: Mapping[str, Any] | None = None) -> BinaryIO:
    """Opens a file on this machine, or behind a URL by what fsspec needs for it."""
    if not is_url(file):
        return open(file, "rb")
    config = datasets.DownloadConfig(storage_options=copy.deepcopy(dict(storage_options or {})))
    return io.BufferedReader(xopen(file, "rb", download_config=config), 1 << 20)


def _lines(file: str, storage_options: Mapping[str, Any] | None) -> Iterator[bytes]:
    """Reads lines, which end at line feeds alone."""
    suffix = Path(file).suffix.lower()
    with opened(file, storage_options) as raw, _OPEN[suffix](raw) if suffix in _OPEN else raw as lines:
        yield from lines


def _texts(lines: Iterator[bytes], spot: Spot) -> Iterator[str]:
    encoding = "utf-8-sig"
    for spot.place, line in enumerate(lines, 1):
        yield line.decode(encoding)
        encoding = "utf-8"


def _json_rows(texts: Iterator[str], spot: Spot) -> Iterator[Line]:
    is_first = True
    for number, text in enumerate(texts, 1):
        if is_first and text.lstrip().startswith("["):
            whole = _parsed("".join(chain([text], texts)))
            for place, row in enumerate(whole, 1):
                spot.place = f"row {place}"
                yield spot.place, _object(row), 0
        elif not text.isspace():
            is_first = False
            yield number, _object(_parsed(text)), len(text)


def _parsed(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error}; a row is an object on a line of its own, or one of a list") from None


# Tabs and form feeds in a text are its characters.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=with_unique_keys)


def _object(value: Any) -> Row:
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, dict):
        raise ValueError(f"it has {value!r}, where an object with the columns of a row is expected")
    return value


def _cells(texts: Iterator[str], spot: Spot, separator: str) -> Iterator[Line]:
    csv.field_size_limit(_LONGEST_CELL)
    rows = csv.reader(texts, delimiter=separator, strict=True)
    names = _header(rows)
    while True:
        line = rows.line_num + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a quote that is not closed ends far below
            spot.place = line
            raise
        if cells and len(cells) != len(names):
            spot.place = line
            raise ValueError(f"{len(cells)} cells, where the header has {len(names)}")
        if cells:
            row = {name: cell or None for name, cell in zip(names, cells, strict=True)}
            yield line, row, sum(map(len, cells))


def _check_separator(names: list[str], separator: str) -> None:
    """Refuses a single column whose name is several ones between another separator."""
    others = [other for other in _SEPARATORS if other != separator and len(names) == 1 and other in names[0]]
    if others:
        raise ValueError(
            f"its only column is {names[0]!r}: cells seem to be separated by {others[0]!r}, and are read as separated "
            f"by {separator!r}. Say what separates them, data.separator: {json.dumps(others[0])}"
        )


def _header(rows: Iterator[list[str]]) -> list[str]:
    names = next((cells for cells in rows if cells), [])
    if not names:
        raise ValueError("it is empty, without a line of column names")
    if twice := sorted({name for name in names if names.count(name) > 1 and name}):
        raise ValueError(f"the column {twice[0]!r} appears twice: rename one")
    return [name or f"Unnamed: {place}" for place, name in enumerate(names)]
