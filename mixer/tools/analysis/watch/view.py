"""A view of a run for the terminal, and the same as plain data."""

import itertools
import math
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mixer.ledger.evaluated_losses import mean_loss, worst_loss
from mixer.policies.contract import UNITS, Unit
from mixer.tools.analysis.watch.gathered import WatchedRun
from mixer.utils.arrays import FloatArray
from mixer.utils.text import clock_text, duration_text, mixing_unit, short_number, unit_beside

CURVE_WIDTH = 12
_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR_WIDTH = 8
# Columns by priority, and their widths.
_COLUMNS = {"weight": _BAR_WIDTH + 6, "loss": 7, "coverage": 8, "share": 6, "evaluated": 9, "curve": CURVE_WIDTH}
_COLUMNS |= {"passes": 7, "samples": 7}
_NAME_WIDTH, _LEAST_NAME_WIDTH = 24, 10
_SILENCE_SECONDS = 30.0
_STATE_STYLES = {"running": "green", "finished": "bold green", "stopped": "bold red"}


def stream_table(run: WatchedRun, columns: int, rows: int) -> RenderableType:
    """Draws a table with one line per stream.

    Args:
        run: The run, after `read`.
        columns: Available width.
        rows: Available height, with the table's head, at least 2. If the streams do not fit, those of greatest weight
            are shown and the others are counted.
    """
    streams, unit = run.streams, mixing_unit({"mixing": run.policy})
    heaviest = sorted(streams, key=lambda name: -streams[name].last["weight"])
    shown = [name for name in streams if name in {*heaviest[: rows - 1 if len(streams) < rows else rows - 2]}]
    name_width = max(_LEAST_NAME_WIDTH, min(_NAME_WIDTH, max(map(len, streams), default=0)))
    widths = _COLUMNS if unit == "samples" else {"weight": _COLUMNS["weight"], f"of {unit}": 9, **_COLUMNS}
    ends = itertools.accumulate(width + 2 for width in widths.values())
    titles = [title for title, end in zip(widths, ends, strict=True) if end <= columns - name_width]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("stream", width=name_width, no_wrap=True, overflow="ellipsis")
    for title in titles:
        table.add_column(title, justify="left" if title in ("weight", "curve") else "right", no_wrap=True)
    shares, own_shares = run.shares(), run.shares(unit)
    for name in shown:
        cells = _cells(run, name, unit) | {"share": f"{shares[name]:.0%}", f"of {unit}": f"{own_shares[name]:.0%}"}
        style = None if streams[name].last["active"] else "dim"
        table.add_row(Text(name), *(cells[title] for title in titles), style=style)
    if len(shown) == len(streams):
        return table
    weight = 1.0 - sum(streams[name].last["weight"] for name in shown)
    text = f"… and {len(streams) - len(shown)} more of {len(streams)} streams, weight {weight:.3f} together"
    return Group(table, Text(text, style="dim", no_wrap=True, overflow="ellipsis"))


def _cells(run: WatchedRun, name: str, unit: Unit) -> dict[str, str | Text]:
    stream, evaluated = run.streams[name], run.evaluations.get(name)
    weight = stream.last["weight" if unit == "samples" else "policy_weight"]
    return {
        "weight": f"{bar_text(weight, _BAR_WIDTH)} {weight:.3f}",
        "loss": loss_text(stream.loss, stream.is_finite),
        "coverage": number_text(stream.last["coverage"], ".0%"),
        "curve": sparkline(stream.losses),
        "evaluated": loss_text(evaluated, _is_finite(evaluated)),
        "passes": number_text(stream.last["epoch"], ".2f"),
        "samples": short_number(stream.last["seen"]),
    }


def _is_finite(value: float | None) -> bool | None:
    return None if value is None else math.isfinite(value)


def number_text(value: float | None, form: str = ".3f") -> str:
    """Formats a number; `-` for NaN and `None`."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def loss_text(value: float | None, is_finite: bool | None) -> Text:
    """Formats a loss or a norm: red if it is not finite, `-` if it is unknown."""
    return Text(f"{value:.3f}", "bold red") if is_finite is False else Text(number_text(value))


def sparkline(values: FloatArray) -> str:
    """Draws the finite values of a curve in up to twelve blocks of eight heights, from their minimum to their maximum.

    Example:
        >>> sparkline(np.array([0.0, 1.0, 2.0, np.nan, 7.0]))
        '▁▂▃█'
    """
    known = values[np.isfinite(values)]
    pieces = np.array_split(known, min(CURVE_WIDTH, len(known))) if len(known) else []
    means = np.array([piece.mean() for piece in pieces])
    span = np.ptp(means) if len(means) else 0.0
    heights = (means - means.min()) / span * (len(_BLOCKS) - 1) if span > 0 else np.zeros(len(means))
    return "".join(_BLOCKS[round(height)] for height in heights.tolist())


def bar_text(share: float, width: int) -> str:
    """Draws a share, 0 to 1, as a bar with a resolution of an eighth of a character."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "░")


def as_document(run: WatchedRun) -> dict[str, Any]:
    """Returns the view as plain data.

    Args:
        run: The run, after `read`.

    Returns:
        run, state, reason (a signal or an error that stopped it, else `None`), progress, seconds_left, clock (newest
        row), loading_share, evaluated_at, eval_loss and eval_worst_loss (over all sets), and streams: for each the
        newest row, loss (mean of the last 50 steps), share (of their samples), token_share,
        label_share and evaluation.
        `..._is_finite`
        beside each loss and the gradient norm tells a non-finite value (false) from an unknown one (`None`).
    """
    shares, evaluations = {unit: run.shares(unit) for unit in UNITS}, run.evaluations
    return {
        **{name: getattr(run, name) for name in ("state", "reason", "progress", "loading_share", "evaluated_at")},
        "run": run.folder,
        "seconds_left": run.seconds_left(),
        "clock": run.clock | {f"{name}_is_finite": is_known for name, is_known in run.is_finite.items()},
        "eval_loss": mean_loss(evaluations, run.eval_weights),
        "eval_worst_loss": worst_loss(evaluations),
        "streams": [
            {
                **{key: value for key, value in stream.last.items() if key not in ("step", "count")},
                "loss": stream.loss,
                "loss_is_finite": stream.is_finite,
                **{f"{unit[:-1]}_share": shares[unit][name] for unit in UNITS[1:]},
                "share": shares["samples"][name],
                "evaluation": evaluations.get(name),
                "evaluation_is_finite": _is_finite(evaluations.get(name)),
            }
            for name, stream in run.streams.items()
        ],
    }


def view(run: WatchedRun, columns: int, rows: int) -> RenderableType:
    """Draws a run.

    Args:
        run: The run, after `read`.
        columns: Width of the terminal.
        rows: Height of the terminal. If it is small, the streams of least weight, or all, are left out.
    """
    lines = _lines(run, columns)[: max(1, rows)]
    left = rows - len(lines)
    return Group(*lines, *([stream_table(run, columns, left)] if left >= 2 else []))


def _lines(run: WatchedRun, columns: int) -> list[Text]:
    """Returns the lines on the run as a whole."""
    clock, losses = run.clock, run.evaluations
    loss, norm = (loss_text(clock[name], run.is_finite[name]) for name in ("loss", "gradient_norm"))
    times = [
        *([f"{duration_text(run.seconds_left())} left"] if run.state == "running" else []),
        f"step {clock['step']:,}, epoch {clock['epoch']:.2f}, {short_number(clock['samples'])} samples",
        f"{short_number(clock['tokens'])} tokens, {number_text(run.seconds_per_step, '.2g')} s/step",
    ]
    rates = f"rate {number_text(clock['learning_rate'], '.2e')}, loading {number_text(run.loading_share, '.0%')}"
    sizes = f" {sparkline(run.losses)}, batch {clock['batch_size']:,}, {rates}, gradient "
    lines = [_title(run), _progress(run, columns), Text(", ".join(times)), Text.assemble("loss ", loss, sizes, norm)]
    if losses:
        # NaN is worse than any number.
        worst = max(losses, key=lambda name: (math.isnan(losses[name]), losses[name]))
        at = f"evaluation at {run.evaluated_at:,}: mean {mean_loss(losses, run.eval_weights):.3f}"
        lines.append(Text(f"{at}, worst {worst} {losses[worst]:.3f}"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _title(run: WatchedRun) -> Text:
    state, silent = run.state, run.seconds_silent()
    line = Text(state if run.reason is None else f"{state} ({run.reason.splitlines()[0]})", style=_STATE_STYLES[state])
    if state == "running" and silent > _SILENCE_SECONDS:
        line.append(f", silent for {duration_text(silent)}", style="yellow")
    line.append(f"  {run.note.get('policy', '')}{unit_beside(run.policy)}", style="not bold default")
    line.append(f"  {run.folder.resolve().name}", style="bold default")
    return line


def _progress(run: WatchedRun, columns: int) -> Text:
    done = {**run.clock, "epochs": run.clock["epoch"], "steps": run.clock["step"]}
    share = f" {run.progress:4.0%}  {clock_text(done, run.budget)}"
    width = max(10, min(40, columns - len(share) - 1))
    return Text(bar_text(run.progress, width), style="cyan").append(share, style="bold")
