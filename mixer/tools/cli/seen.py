"""`mixer seen RUN`: which rows a run was trained on, and when."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jsonargparse import Namespace

from mixer.tools.cli.command import Command, add_json, parser_of_run
from mixer.tools.console import print_json, show, table_of
from mixer.tools.records.exposure import Exposure
from mixer.utils.text import print_lines

_MOST_SHOWN = 200  # lines of a table on a screen


def seen() -> Command:
    """Show which rows were trained on, and when."""
    parser = parser_of_run(
        "Shows in which steps rows were trained on, which rows never were, or which rows a step had, "
        "computed from the run's ledger. Rows are numbered from 0, as in the stream's data set."
    )
    add = parser.add_argument
    add("--stream", type=str, metavar="NAME", help="Stream of the rows. May be left out if there is only one.")
    add("--row", type=int, nargs="+", metavar="N", help="Rows to look up.")
    add("--never", action="store_true", help="List the rows that were never trained on.")
    add("--step", type=int, metavar="N", help="List the rows of a step.")
    add_json(parser)
    return Command(parser, _seen, example="mixer seen runs/demo/uniform --stream english --row 17")


def _seen(config: Namespace) -> None:
    asked = [name for name in ("row", "never", "step") if config[name] not in (None, False)]
    if len(asked) != 1:
        raise ValueError(f"give one of --row N, --never and --step N, got {asked or 'none'}.")
    exposure = Exposure(config.run)
    if config.step is not None:
        table = exposure.at(config.step)
        _show(table if config.stream is None else table[table["stream"] == config.stream], config.json)
        return
    stream = _stream(exposure, config.stream)
    if config.never:
        list_unseen(exposure, stream, config.json)
        return
    table = exposure.of(stream, config.row)
    never = np.setdiff1d(np.asarray(config.row, dtype=np.int64), table["row"].to_numpy(dtype=np.int64))
    _show(table, config.json, {"stream": stream, "never": never})


def _stream(exposure: Exposure, name: str | None) -> str:
    if name is not None:
        return name
    if len(exposure.streams) != 1:
        raise ValueError(f"give --stream, one of {exposure.streams}.")
    return exposure.streams[0]


def _show(table: pd.DataFrame, is_json: bool, more: dict[str, Any] | None = None) -> None:
    own = more or {}
    left_out, never = len(table) - _MOST_SHOWN, own.get("never", [])
    notes = [f"{left_out:,} more lines: --json has them"] if left_out > 0 else []
    if len(never):
        shown = ", ".join(map(str, never[:_MOST_SHOWN]))
        notes.append(f"never trained on: {len(never):,} of the rows asked for ({shown})")
    view = partial(table_of, "Rows trained on", table.head(_MOST_SHOWN), "\n".join(notes))
    show(lambda: {**own, "seen": table}, view, is_json)


def list_unseen(exposure: Exposure, stream: str, is_json: bool) -> None:
    """Lists rows that were never trained on, a line each: for a pipe or a file; says beside it if there is none."""
    if is_json:
        found = [row for chunk in exposure.never(stream) for row in chunk.tolist()]
        print_json({"stream": stream, "never": found})
        return
    is_empty = True
    for chunk in exposure.never(stream):
        print_lines(*chunk.tolist())
        is_empty = is_empty and not len(chunk)
    if is_empty:  # not among the numbers, which a pipe or a file may take
        print_lines(f"mixer seen: every row of {stream} was trained on.", file=sys.stderr)
