"""What commands print: tables for people, JSON for scripts."""

import contextlib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jsonargparse import ArgumentParser
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_WIDTH_WITHOUT_TERMINAL = 120
_NOT_PRINTABLE = "\ufffd"


class _Screen(Console):
    """Shows texts as they are: names in them neither colour, move nor break what stands on the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders, with a mark in place of each character that prints nothing, but for the ends of lines."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text="".join(map(_shown, segment.text)))


def _shown(character: str) -> str:
    return character if character.isprintable() or character == "\n" else _NOT_PRINTABLE


def console() -> Console:
    """Gives what tables are printed on: as wide as the terminal, and 120 columns where there is none.

    Returns:
        The console. It reads no markup in texts, such as `[red]`, and lets no escapes through.
    """
    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return _Screen(width=width, markup=False, emoji=False)


def add_json(parser: ArgumentParser) -> None:
    """Adds the option `--json` to a command.

    Args:
        parser: The command's parser.
    """
    parser.add_argument("--json", action="store_true", help="Print one JSON document, and nothing else, on stdout.")


def print_json(content: Any) -> None:
    """Prints a JSON document that every parser reads: what is not a number, or infinite, is null.

    Args:
        content: Plain data, arrays and tables in it too; a table becomes a list of its rows.
    """
    print(json.dumps(_plain(content), indent=2, allow_nan=False))  # noqa: T201


@contextlib.contextmanager
def only_json(is_requested: bool) -> Iterator[None]:
    """Sends what is printed meanwhile to stderr, where stdout is for JSON alone.

    Args:
        is_requested: Whether it is.

    Yields:
        Nothing.
    """
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
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is pd.NA:
        return None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} cannot be written as JSON.")
