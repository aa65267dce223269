"""Time of a step, and prefetch hits."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mixer.analysis.report.clocked import averaged
from mixer.analysis.report.plot import Panel, Plot, colours_of, line, panel
from mixer.analysis.report.run import Run

_PARTS = {"train_seconds": "training", "load_seconds": "loading", "probe_seconds": "measuring gradients"}
_COLOURS = {"training": "#3b82c4", "loading": "#e07b39", "measuring gradients": "#8a6fd1"}
# The first steps warm up: an axis up to them would press all others flat.
_SHOWN_QUANTILE, _HEADROOM = 0.98, 1.25


def timings(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the seconds per step of the main rank by loading, training and measuring, stacked, one panel per run."""
    end = max(run.clock["epoch"].max() for run in runs)
    is_measured = any(run.timings["probe_seconds"].any() for run in runs)
    parts = [column for column in _PARTS if column != "probe_seconds" or is_measured]
    timed = {run.name: averaged(run.timings, parts, most_points) for run in runs if len(run.timings)}
    tops = [float(np.quantile(rows[parts].sum(axis=1), _SHOWN_QUANTILE)) for rows in timed.values()]
    top = _HEADROOM * max(tops, default=0.0) or 1.0
    panels = [_panel(name, rows, parts, end, top) for name, rows in timed.items()]
    colours = {_PARTS[column]: _COLOURS[_PARTS[column]] for column in parts}
    caption = (
        "Seconds of a step, of the main rank, by epochs of data, averaged where steps are many. A few slow ones "
        "may go beyond the top. " + " ".join(map(_in_words, runs))
    )
    return Plot("Time of a step", caption, panels, colours)


def _panel(run: str, rows: pd.DataFrame, parts: Sequence[str], end: float, top: float) -> Panel:
    lines = [
        line(rows, column, _PARTS[column], _COLOURS[_PARTS[column]], stackgroup="seconds", line={"width": 0.5})
        for column in parts
    ]
    return panel(run, lines, end, range=[0, top], ticksuffix=" s")


def _in_words(run: Run) -> str:
    sums = {column: float(run.timings[column].sum()) for column in _PARTS}
    total = sum(sums.values()) or 1.0
    shares = ", ".join(f"{seconds / total:.1%} is {_PARTS[column]}" for column, seconds in sums.items() if seconds)
    return f"In {run.name} {shares or 'no time was recorded'}."


def prefetch(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the share of prefetch hits, one line per run with workers."""
    colours = colours_of([run.name for run in runs])
    end = max(run.clock["epoch"].max() for run in runs)
    lines = []
    for run in runs:
        rows = averaged(run.timings[run.timings["hits"] + run.timings["misses"] > 0], ["hits", "misses"], most_points)
        if len(rows):
            shares = rows.assign(share=rows["hits"] / (rows["hits"] + rows["misses"]))
            lines.append(line(shares, "share", run.name, colours[run.name]))
    panels = [panel("Hits", lines, end, range=[0, 1.05], tickformat=".0%")] if lines else []
    caption = (
        "Share of the samples that workers had prefetched, by epochs of data; training waits for the others. "
        + " ".join(map(_hits_in_words, runs))
    )
    return Plot("Prefetching", caption, panels, colours)


def _hits_in_words(run: Run) -> str:
    hits, misses = int(run.timings["hits"].sum()), int(run.timings["misses"].sum())
    if not hits + misses:
        return f"In {run.name} there were no workers."
    return f"In {run.name} it is {hits / (hits + misses):.1%}: {misses:,} samples were not prefetched."
