"""Reads files of rows on this machine, compressed ones too."""

import copy
import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import datasets
import pyarrow
from datasets.builder import Key
from datasets.data_files import DataFilesDict, DataFilesList
from datasets.exceptions import DatasetsError
from datasets.streaming import extend_dataset_builder_for_streaming
from pyarrow import parquet
from transformers.utils import logging

from mixer.tools.recipe.data.file_list import Counts, is_first_rank, kept_files, tell_of_files
from mixer.tools.recipe.data.reading import Reading
from mixer.tools.recipe.data.rows import VERSION, Rows, known, opened, other_columns
from mixer.tools.recipe.data.suffixes import BUILDERS, KNOWN, SEPARATORS, UnreadableError, naming, suffix_of
from mixer.tools.recipe.places import retold
from mixer.utils.errors import require, wrong_value
from mixer.utils.text import printable, shortened

logger = logging.get_logger(__name__)

# `mixer new` writes it beside a recipe, which may lie with the data.
SCHEMA_FILE = "recipe.schema.json"
_FAILURES = (DatasetsError, OSError, EOFError, ValueError, TypeError, KeyError, StopIteration)
# Numbers as programs write them: 01 and +1 are words.
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_FRACTION = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_NUM_FIRST = 10_000  # rows of a stream that decide whether its cells are numbers


def files_in(folder: Path, called: str, recursive: bool = False) -> list[Path]:
    """Lists the files of rows in a folder, sorted by name, and logs which others are left out.

    Hidden files, folders whose names begin with a dot or two underscores, and the schema of recipes are left out
    silently.

    Args:
        folder: The folder.
        called: Name of the data in the log.
        recursive: Whether to include subfolders.
    """
    paths = sorted(file for file in (folder.rglob("*") if recursive else folder.iterdir()) if file.is_file())
    seen = [file for file in paths if not any(part.startswith((".", "__")) for part in file.relative_to(folder).parts)]
    files = [file for file in seen if suffix_of(file) is not None and file.name != SCHEMA_FILE]
    others = [file.name for file in seen if suffix_of(file) is None and file.name != "README.md"]
    if others and files and is_first_rank():
        logger.warning("%s: left out, of no known format: %s.", called, printable(shortened(", ".join(others))))
    return files


def read_files(files: Sequence[Path | str], reading: Reading) -> Any:
    """Reads files of one format, in order.

    Args:
        files: The files, at least one. A text is a URL.
        reading: How to read them.

    Returns:
        A `datasets.Dataset`, or a `datasets.IterableDataset` if streaming.

    Raises:
        ValueError: If a format is unknown, files have different formats or columns, one cannot be read, a column does
            not exist, or an option is for other files.
    """
    places = [PurePath(file) for file in files]
    suffix = _common_suffix(places, reading)
    if suffix not in SEPARATORS:
        reading.refuse("separator")
    if suffix != ".txt":
        reading.refuse("rows")
    packed = [place.name for place in places if place.suffix.lower() == ".zst"]
    if packed and BUILDERS[suffix] is not None and importlib.util.find_spec("zstandard") is None:
        raise wrong_value("path", f": {packed[0]!r} is read by the package zstandard: pip install zstandard.")
    with telling(reading.called):
        if suffix == ".parquet":
            _check_schemas(files, reading)
        builder = _builder(files, suffix, reading)
        counts: Counts = {}
        builder._generate_tables = partial(_by_file, builder, counts)  # noqa: SLF001 what all builders of tables have
        table = rows_of(builder, "train", reading.streaming)
        here = [file for file in files if isinstance(file, Path)]
        if len(here) == len(files):
            read = kept_files(here, Path(builder.cache_dir), counts)
            if len(here) > 1 or here[0].name != PurePath(reading.path).name:  # else the user has named the only one
                tell_of_files(reading.called, read)
        if suffix in (".txt", ".arrow"):
            table = chosen(table, reading.columns)
        return _with_numbers(table, reading.numbers, reading.has_types) if suffix in SEPARATORS else table


@contextmanager
def telling(called: str) -> Iterator[None]:
    """Raises the failures of reading rows as a `ValueError`; one about a file names the data, too."""
    try:
        yield
    except _FAILURES as error:
        cause: Any = error.__cause__ if isinstance(error, DatasetsError) and error.__cause__ else error
        text = str(cause) if isinstance(cause, ValueError) else f"{type(cause).__name__}: {cause}"
        whose = {"stream": called} if isinstance(cause, UnreadableError) else {}
        raise retold(cause, text, **whose) from error


def rows_of(builder: Any, split: str, streaming: bool) -> Any:
    """Reads a split of a builder of `datasets`, or begins to stream it."""
    if streaming:
        return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare()
    if not builder.info.splits[split].num_examples:
        with naming(str(builder.config.data_files[split][0])):
            raise ValueError("there are no rows")
    return builder.as_dataset(split=split)


def chosen(table: Any, columns: Sequence[str] | None) -> Any:
    """Selects columns of a data set; `None` is all.

    Raises:
        ValueError: If one does not exist.
    """
    return table if columns is None else table.select_columns(known(columns, table.column_names or columns))


def _by_file(builder: Any, counts: Counts, **lists: Any) -> Iterator[tuple[Key, pyarrow.Table]]:
    """Reads one file after another, to name it in errors and to count its rows, for a builder with files in lists."""
    for place, name in enumerate(lists.get("base_files") or lists["files"]):
        own = {argument: values[place : place + 1] for argument, values in lists.items()}
        with naming(str(name)):
            if builder.storage_options:  # `datasets` opens files of all streams by the options of the last one
                extend_dataset_builder_for_streaming(builder)
            for number, (_, table) in enumerate(type(builder)._generate_tables(builder, **own)):  # noqa: SLF001
                num_rows, columns = counts.get(place, (0, set()))
                found = {column for column in table.column_names if table.column(column).null_count < table.num_rows}
                counts[place] = num_rows + table.num_rows, columns | found
                yield Key(place, number), table


def _builder(files: Sequence[Path | str], suffix: str, reading: Reading) -> Any:
    names = [file if isinstance(file, str) else str(file.absolute()) for file in files]
    kind = BUILDERS[suffix]
    own = {"storage_options": copy.deepcopy(reading.storage_options or {})}  # `datasets` adds to it
    if kind is not None:
        # With its features it tells a file without rows by their number.
        features = datasets.Features({"text": datasets.Value("string")})
        text = {"sample_by": reading.rows, "encoding": "utf-8-sig", "features": features}
        options: dict[str, dict[str, Any]] = {"text": text, "parquet": {"columns": reading.columns}}
        return datasets.load_dataset_builder(kind, data_files=names, **own, **options.get(kind, {}))
    states = [None if isinstance(file, str) else file.stat() for file in files]  # URLs are streamed, not cached
    ages = ["" if state is None else f"{state.st_size} {state.st_mtime_ns}" for state in states]
    identity = list(zip(names, ages, strict=True))
    data_files = DataFilesDict({"train": DataFilesList(names, identity)})
    wanted = None if reading.columns is None else list(reading.columns)
    cells = {"separator": reading.separator or SEPARATORS.get(suffix), "is_chosen": reading.separator is not None}
    return Rows(data_files=data_files, hash=VERSION, columns=wanted, **cells, **own)


def _check_schemas(files: Sequence[Path | str], reading: Reading) -> None:
    """Refuses Parquet files that do not fit the first: `datasets` would turn numbers into texts and back."""
    first: dict[str, Any] = {}
    columns = reading.columns
    for file in files:
        with naming(str(file)), opened(str(file), reading.storage_options) as content:
            own: dict[str, Any] = dict(datasets.Features.from_arrow_schema(parquet.read_schema(content)))
        own = {name: own[name] for name in (own if columns is None else known(columns, list(own)))}
        first = first or own
        differing = [name for name, kind in own.items() if not _fit(kind, first.get(name))]
        if differing:
            place = PurePath(files[0]).name
            raise other_columns(str(file), _in_words(own, differing), place, _in_words(first, differing))


def _fit(kind: Any, first: Any) -> bool:
    if isinstance(kind, datasets.List) and isinstance(first, datasets.List):
        return _fit(kind.feature, first.feature)
    if isinstance(kind, dict) and isinstance(first, dict):
        return kind.keys() == first.keys() and all(_fit(kind[name], first[name]) for name in kind)
    if kind == first or not (isinstance(kind, datasets.Value) and isinstance(first, datasets.Value)):
        return bool(kind == first)
    are_texts = {"string" in value.dtype for value in (kind, first) if value.dtype != "null"}
    return len(are_texts) < 2


def _with_numbers(table: Any, names: Collection[str], has_types: bool) -> Any:
    for name in table.column_names:
        if name not in names and not has_types:
            continue
        is_stream = isinstance(table, datasets.IterableDataset)
        rows = islice(table.select_columns([name]), _NUM_FIRST) if is_stream else ()
        cells = [row[name] for row in rows] if is_stream else table.data.column(name).to_pylist()
        kind = _number_kind([cell for cell in cells if cell is not None], is_exact=name not in names)
        if kind is not None and is_stream:
            features = datasets.Features({**table.features, name: datasets.Value(kind)})
            table = table.map(partial(_with_number, name=name, kind=kind), features=features)
        elif kind is not None:
            table = table.cast_column(name, datasets.Value(kind))
    return table


def _with_number(row: dict[str, Any], name: str, kind: str) -> dict[str, Any]:
    cell = row[name]
    if cell is None:
        return row
    is_number = _number_kind([cell], is_exact=False) in ("int64", kind)
    require(is_number, name, f"a number ({kind}), as in the first rows", cell)
    return {**row, name: int(cell) if kind == "int64" else float(cell)}


def _number_kind(cells: Sequence[str], is_exact: bool) -> str | None:
    """Returns the type of cells that are all numbers: `int64`, `float64`, or `None` if they are not."""
    if not cells:
        return None
    if all(map(_WHOLE.fullmatch, cells)) and all(-(2**63) <= int(cell) < 2**63 for cell in cells):
        return "int64"
    is_number = all(map(_FRACTION.fullmatch, cells)) and not all(map(_WHOLE.fullmatch, cells))
    return "float64" if is_number and (not is_exact or all(repr(float(cell)) == cell for cell in cells)) else None


def _common_suffix(files: Sequence[PurePath], reading: Reading) -> str:
    by_suffix = {suffix_of(file): file for file in reversed(files)}
    if None in by_suffix:
        name = str(by_suffix[None])
        raise wrong_value("path", f": {name!r} is of no known format: it must end in {KNOWN}.", found=name)
    suffixes = sorted(suffix for suffix in by_suffix if suffix is not None)
    if len(suffixes) > 1 and not set(suffixes) <= {".json", ".jsonl"}:
        named = ", ".join(f"{suffix} ({by_suffix[suffix].name})" for suffix in suffixes)
        way = f"Leave out those that are no data (data.exclude), or give a pattern such as '*{suffixes[0]}'."
        raise wrong_value("path", f": {reading.path!r} mixes the formats {named}. {way}", found=suffixes)
    return suffixes[0]


def _in_words(columns: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    kinds = {name: columns[name] for name in names if name in columns}
    return [f"{name} ({kind.dtype if isinstance(kind, datasets.Value) else kind})" for name, kind in kinds.items()]
