"""Output of commands: tables for people, JSON for scripts."""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 120
_NOT_PRINTABLE = "\ufffd"
_LONG = 1e4  # numbers from here on have no digits after the point


class _Screen(Console):
    """Console that shows names literally: they cannot change colours, move the cursor or break the layout."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Replaces non-printable characters, except line ends."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                shown = (one if one.isprintable() or one == "\n" else _NOT_PRINTABLE for one in segment.text)
                yield segment._replace(text="".join(shown))


def console() -> Console:
    """Returns the console for tables: as wide as the terminal, else 120 columns.

    It interprets no markup in texts, such as `[red]`, and lets no escape sequences through.
    """
    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return _Screen(width=width, markup=False, emoji=False)


def print_json(content: Any) -> None:
    """Prints plain data, arrays, tables, dataclasses and each `Result` as strict JSON.

    NaN and infinite numbers become null, and a table becomes a list of rows.

    Raises:
        TypeError: If a value is of another type.
    """
    print(json.dumps(_plain(content), indent=2, allow_nan=False))  # noqa: T201


class Result:
    """A result of a command; `print_json` writes its public attributes."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in _public(self).items())})"


def _public(result: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(result).items() if not name.startswith("_")}


def show(content: Callable[[], Any], view: Callable[[], RenderableType], is_json: bool) -> None:
    """Prints a command's result: its data for `print_json`, or its view for people."""
    if is_json:
        print_json(content())
    else:
        console().print(view())


def cells_of(records: Sequence[Mapping[str, Any]] | pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Writes records for people.

    Args:
        records: Values by name; a name that only some have is a column too.

    Returns:
        The heads of the columns, and the cells, a row for each record.
    """
    rows: Any = records.to_dict("records") if isinstance(records, pd.DataFrame) else records
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    return [name.replace("_", " ") for name in names], [[_written(row.get(name)) for name in names] for row in rows]


def table_of(title: str, records: Sequence[Mapping[str, Any]] | pd.DataFrame, caption: str = "") -> Table:
    """Renders records as a table, texts to the left and numbers to the right; see `cells_of`."""
    heads, rows = cells_of(records)
    table = Table(title=title, caption=caption or None)
    for head, *cells in zip(heads, *rows, strict=True):
        is_text = any(cell[:1].isalpha() for cell in cells)
        table.add_column(head, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _written(value: Any) -> str:
    """Writes a value for people: `-` for none or NaN, four digits of a fraction."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value)) or "-"
    if value is None or value is pd.NA or value != value:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < _LONG else f"{value:,.0f}"
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


@contextlib.contextmanager
def only_json(is_requested: bool) -> Iterator[None]:
    """Redirects output in the context to stderr, if stdout is reserved for JSON."""
    with contextlib.redirect_stdout(sys.stderr) if is_requested else contextlib.nullcontext():
        yield


def _plain(value: Any) -> Any:
    if isinstance(value, pd.DataFrame):
        return [_plain(row) for row in value.to_dict("records")]
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Result) or (is_dataclass(value) and not isinstance(value, type)):
        return _plain(_public(value))
    raise TypeError(f"{value!r} cannot be written as JSON.")
