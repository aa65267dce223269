"""The streams of a run, one line each, in as much room as there is."""

import itertools
import math
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mixer.analysis.watch.curve import sparkline
from mixer.analysis.watch.gathered import Gathered, GatheredStream
from mixer.utils.clock_text import short_number

CURVE_WIDTH = 12
_BAR_WIDTH = 8
# Columns in the order in which they get room: title, its width.
_COLUMNS = (
    ("weight", _BAR_WIDTH + 6),
    ("loss", 7),
    ("coverage", 8),
    ("share", 6),
    ("evaluated", 9),
    ("curve", CURVE_WIDTH),
    ("passes", 7),
    ("samples", 7),
)
_NAME_WIDTH, _LEAST_NAME_WIDTH = 24, 10


def stream_table(gathered: Gathered, columns: int, rows: int) -> RenderableType:
    """Draws a table of the streams.

    Args:
        gathered: What the run has recorded.
        columns: Width that there is.
        rows: Height that there is, at least 2, the table's head in it.

    Returns:
        One line a stream; where they are too many, those of the greatest weight and a line that counts the others.
    """
    streams, shares = gathered.streams, gathered.shares()
    shown = _shown(streams, rows)
    name_width = max(_LEAST_NAME_WIDTH, min(_NAME_WIDTH, max(map(len, streams), default=0)))
    titles = _fitting(columns - name_width)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("stream", width=name_width, no_wrap=True, overflow="ellipsis")
    for title in titles:
        table.add_column(title, justify="left" if title in ("weight", "curve") else "right", no_wrap=True)
    for name in shown:
        cells = _cells(streams[name], shares[name], gathered.evaluations.get(name))
        style = None if streams[name].last["active"] in (None, True) else "dim"
        table.add_row(Text(name), *(cells[title] for title in titles), style=style)
    if len(shown) == len(streams):
        return table
    weight = 1.0 - sum(streams[name].last["weight"] for name in shown)
    text = f"… and {len(streams) - len(shown)} more of {len(streams)} streams, weight {weight:.3f} together"
    return Group(table, Text(text, style="dim", no_wrap=True, overflow="ellipsis"))


def _shown(streams: Mapping[str, GatheredStream], rows: int) -> list[str]:
    """Names the streams that there is room for, in their order."""
    if len(streams) <= rows - 1:
        return list(streams)
    heaviest = set(sorted(streams, key=lambda name: -streams[name].last["weight"])[: rows - 2])
    return [name for name in streams if name in heaviest]


def _fitting(columns: int) -> list[str]:
    """Names the columns that there is room for."""
    ends = itertools.accumulate(width + 2 for _, width in _COLUMNS)
    return [title for (title, _), end in zip(_COLUMNS, ends, strict=True) if end <= columns]


def _cells(stream: GatheredStream, share: float, evaluated: float | None) -> dict[str, str | Text]:
    last = stream.last
    return {
        "weight": f"{bar_text(last['weight'], _BAR_WIDTH)} {last['weight']:.3f}",
        "loss": loss_text(stream.recent_loss, stream.is_finite),
        "coverage": number_text(last["coverage"], ".0%"),
        "share": f"{share:.0%}",
        "curve": sparkline(stream.losses.points, CURVE_WIDTH),
        "evaluated": loss_text(evaluated, None if evaluated is None else math.isfinite(evaluated)),
        "passes": number_text(last["epoch"], ".2f"),
        "samples": short_number(last["seen"]),
    }


def number_text(value: float | None, form: str = ".3f") -> str:
    """Writes a number that may not be known.

    Args:
        value: The number; NaN and `None` are not known.
        form: How it is written.

    Returns:
        The text, `-` where it is not known.
    """
    return "-" if value is None or math.isnan(value) else format(value, form)


def loss_text(value: float | None, is_finite: bool | None) -> Text:
    """Writes a loss or a norm, in red if it is no number.

    Args:
        value: The number.
        is_finite: Whether it is finite; `None` if it is not known.

    Returns:
        The text, `-` where it is not known.
    """
    return Text(f"{value:.3f}", "bold red") if is_finite is False else Text(number_text(value))


def bar_text(share: float, width: int) -> str:
    """Draws a share of 1 as a bar, with eighths of a character.

    Args:
        share: The share.
        width: Its width.

    Returns:
        The bar.
    """
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "░")
