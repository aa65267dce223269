"""Batch size, learning rate, time of a step and prefetch hits, over the data clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mixer.analysis.report.clocked import averaged, thin
from mixer.analysis.report.plot import Panel, Plot, colours_of, line, panel
from mixer.analysis.report.run import Run, last_epoch

_PARTS = {"train_seconds": "training", "load_seconds": "loading", "probe_seconds": "measuring gradients"}
_COLOURS = {"train_seconds": "#3b82c4", "load_seconds": "#e07b39", "probe_seconds": "#8a6fd1"}
# The first steps warm up: an axis up to them would press all others flat.
_SHOWN_QUANTILE, _HEADROOM = 0.98, 1.25


def batch_size(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the requested batch size, one line per run."""
    # A point stands at the end of its step: the line is upright before it.
    panels = _of_clock(runs, {"batch_size": "Samples"}, most_points, line_shape="vh")
    caption = "Samples of a step, over all ranks, by epochs of data. " + " ".join(map(_size_in_words, runs))
    return Plot("Batch size", caption, panels, colours_of([run.name for run in runs]))


def learning_rate(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the learning rate and, where the batch size scales it, the factor, one line per run."""
    titles = {"learning_rate": "Learning rate"}
    if any((run.clock["learning_rate_factor"] != 1.0).any() for run in runs):
        titles["learning_rate_factor"] = "Factor from the batch size, a part of it"
    caption = "The learning rate of each step, by epochs of data. " + " ".join(map(_rate_in_words, runs))
    panels = _of_clock(runs, titles, most_points)
    return Plot("Learning rate", caption, panels, colours_of([run.name for run in runs]))


def _of_clock(runs: Sequence[Run], titles: Mapping[str, str], most_points: int, **style: Any) -> list[Panel]:
    """Draws columns of the clock, a panel each, one line per run."""
    colours = colours_of([run.name for run in runs])
    return [
        panel(
            title,
            [line(thin(run.clock, column, most_points), column, run.name, colours[run.name], **style) for run in runs],
            last_epoch(runs),
            rangemode="tozero",
        )
        for column, title in titles.items()
    ]


def _size_in_words(run: Run) -> str:
    sizes = run.clock["batch_size"]
    first, last, least, greatest = sizes.iloc[0], sizes.iloc[-1], sizes.min(), sizes.max()
    if least == greatest:
        return f"In {run.name} it stays at {first:,}."
    return f"In {run.name} it goes from {first:,} to {last:,} (least {least:,}, greatest {greatest:,})."


def _rate_in_words(run: Run) -> str:
    rates, factors = run.clock["learning_rate"].dropna(), run.clock["learning_rate_factor"]
    if rates.empty:
        return f"In {run.name} it is not known."
    epoch = run.clock["epoch"].iloc[int(run.clock["learning_rate"].argmax())]
    words = f"In {run.name} it peaks at {rates.max():.3g} in epoch {epoch:.2f}, and {rates.iloc[-1]:.3g} in the last"
    if (factors == 1.0).all():
        return f"{words} step; the batch size does not scale it."
    return f"{words} step; the batch size multiplies it by {factors.min():.3g} to {factors.max():.3g}."


def timings(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the seconds per step of the main rank by loading, training and measuring, stacked, one panel per run."""
    is_measured = any(run.timings["probe_seconds"].any() for run in runs)
    parts = [column for column in _PARTS if column != "probe_seconds" or is_measured]
    timed = {run.name: averaged(run.timings, parts, most_points) for run in runs if len(run.timings)}
    tops = [float(np.quantile(rows[parts].sum(axis=1), _SHOWN_QUANTILE)) for rows in timed.values()]
    axis = {"range": [0, _HEADROOM * max(tops, default=0.0) or 1.0], "ticksuffix": " s"}
    style: dict[str, Any] = {"stackgroup": "seconds", "line": {"width": 0.5}}
    panels = [
        panel(
            name,
            [line(rows, column, _PARTS[column], _COLOURS[column], **style) for column in parts],
            last_epoch(runs),
            **axis,
        )
        for name, rows in timed.items()
    ]
    caption = (
        "Seconds of a step, of the main rank, by epochs of data, averaged where steps are many. A few slow ones "
        "may go beyond the top. " + " ".join(map(_time_in_words, runs))
    )
    return Plot("Time of a step", caption, panels, {_PARTS[column]: _COLOURS[column] for column in parts})


def _time_in_words(run: Run) -> str:
    sums = {title: float(run.timings[column].sum()) for column, title in _PARTS.items()}
    total = sum(sums.values())
    shares = ", ".join(f"{seconds / total:.1%} is {title}" for title, seconds in sums.items() if seconds)
    return f"In {run.name} {shares or 'no time was recorded'}."


def prefetch(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the share of prefetch hits, one line per run with workers."""
    colours = colours_of([run.name for run in runs])
    lines = []
    for run in runs:
        rows = averaged(_with_workers(run), ["hits", "misses"], most_points)
        if len(rows):
            shares = rows.assign(share=rows["hits"] / (rows["hits"] + rows["misses"]))
            lines.append(line(shares, "share", run.name, colours[run.name]))
    panels = [panel("Hits", lines, last_epoch(runs), range=[0, 1.05], tickformat=".0%")] if lines else []
    caption = (
        "Share of the samples that workers had prefetched, by epochs of data; training waits for the others. "
        + " ".join(map(_hits_in_words, runs))
    )
    return Plot("Prefetching", caption, panels, colours)


def _with_workers(run: Run) -> pd.DataFrame:
    return run.timings[run.timings["hits"] + run.timings["misses"] > 0]


def _hits_in_words(run: Run) -> str:
    hits, misses = int(run.timings["hits"].sum()), int(run.timings["misses"].sum())
    if not hits + misses:
        return f"In {run.name} there were no workers."
    return f"In {run.name} it is {hits / (hits + misses):.1%}: {misses:,} samples were not prefetched."
