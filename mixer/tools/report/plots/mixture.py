"""The mixture: weights and realised shares, passes over the streams, and the content of replay buffers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.tools.records.run import Run
from mixer.tools.records.runs import last_epoch, stream_names
from mixer.tools.report.plot import Panel, Plot, buckets, colours_of, line, panel, thin
from mixer.utils.text import listed

# Of more stretches than can be told apart, shares that go up and down by one sample are a fringe.
_MOST_STRETCHES = 150


def mixture(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots what was drawn of each stream, stacked, one panel per run."""
    units = listed(list(dict.fromkeys(run.unit for run in runs)))
    panels, colours = _bands(runs, "share", most_points)
    return Plot("Mixture", f"The share of the {units} drawn from each stream.", panels, colours)


def weights(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the weights that the policy asked for, stacked, one panel per run."""
    panels, colours = _bands(runs, "weight", most_points)
    on_top = any((run.clock["total"] > run.clock["batch_size"]).any() for run in runs)
    why = "a memory was replayed on top of the weights (additional samples, beyond the batch size), or " * on_top
    caption = (
        f"What was asked for. Where the drawn mixture differs, {why}a stream could not give as much; a band that "
        "narrows to nothing is starved."
    )
    return Plot("Weights", caption, panels, colours)


def _bands(runs: Sequence[Run], column: str, most_points: int) -> tuple[list[Panel], dict[str, str]]:
    """Draws a column of each run's streams, stacked; returns the panels and the colours of the streams."""
    colours, end, panels = colours_of(stream_names(runs)), last_epoch(runs), []
    for run in runs:
        lines = [
            line(rows.dropna(), column, name, colours[name], stackgroup="shares", line={"width": 0.5})
            for name, rows in shares(run, min(most_points, _MOST_STRETCHES)).items()
        ]
        panels.append(panel(run.name, lines, end, range=[0, 1], tickformat=".0%"))
    return panels, colours


def shares(run: Run, most_points: int) -> dict[str, pd.DataFrame]:
    """Averages the mixture over stretches of the data clock, the same for all streams so that they sum to 1.

    Args:
        run: The run.
        most_points: Greatest number of stretches.

    Returns:
        By stream, one row per stretch: epoch and samples at its end, weight, and share of the samples; both of
        tokens or labels if the policy mixes by them.
    """
    weight, amount = ("weight", "count") if run.unit == "samples" else ("policy_weight", run.unit)
    steps = run.clock["step"].to_numpy()
    bucket = np.unique(buckets(run.clock["epoch"].to_numpy(), most_points), return_inverse=True)[1]
    ends = run.clock[["epoch", "samples"]].groupby(bucket).last()
    sums = {}
    for name, rows in run.streams.items():
        place = bucket[np.searchsorted(steps, rows["step"].to_numpy())]
        # A stream that came or went has no rows in some stretches: it gave nothing there.
        sums[name] = rows[[weight, amount]].groupby(place).sum().reindex(ends.index, fill_value=0)
    total = sum(sums.values())
    parts = {name: (own / total).rename(columns={weight: "weight", amount: "share"}) for name, own in sums.items()}
    return {name: ends.join(own) for name, own in parts.items()}


def coverage(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the passes over each stream of known length, one panel per run."""
    colours, end = colours_of(stream_names(runs)), last_epoch(runs)
    sized = {
        run.name: {name: rows for name, rows in run.streams.items() if rows["passes"].notna().any()} for run in runs
    }
    top = max((rows["passes"].max() for parts in sized.values() for rows in parts.values()), default=0.0)
    panels = [
        panel(
            name,
            [
                line(thin(rows, "passes", most_points), "passes", stream, colours[stream])
                for stream, rows in parts.items()
            ],
            end,
            range=[0, 1.05 * top or 1.0],
        )
        for name, parts in sized.items()
    ]
    caption = "How often each stream was seen: above 1 its samples repeat, and from about 4 on they teach little."
    return Plot("Passes over the streams", caption, panels, colours)


def memory(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the entries of each replay buffer by source, stacked, one panel per buffer."""
    buffers = [(run.name, name, rows) for run in runs for name, rows in run.memories.items()]
    sources = list(dict.fromkeys(str(source) for _, _, rows in buffers for source in rows["source"].unique()))
    colours = colours_of(list(dict.fromkeys([*stream_names(runs), *sources])))
    panels = [
        panel(f"{run}: {name}", _stacked(rows, colours, most_points), last_epoch(runs), rangemode="tozero")
        for run, name, rows in buffers
    ]
    caption = "Entries of each replay buffer by the stream that they came from: a band that vanishes is forgotten."
    return Plot("Replay memory", caption, panels, {name: colours[name] for name in sources})


def _stacked(rows: pd.DataFrame, colours: Mapping[str, str], most_points: int) -> list[go.Scatter]:
    """Draws a line per source, all with the same points, since they are stacked."""
    style: dict[str, Any] = {"stackgroup": "entries", "line": {"width": 0.5}}
    return [
        line(entries.rename("entries").reset_index(), "entries", str(source), colours[str(source)], **style)
        for source, entries in _held(rows, most_points).items()
    ]


def _held(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Tabulates the entries of a replay buffer by source.

    Args:
        rows: One row per log entry and source: step, epoch, samples, source, entries.
        most: Greatest number of log entries: each stretch of the data clock keeps its last.

    Returns:
        Numbers of entries, one row per log entry (the index: step, epoch, samples) and one column per source, in order
        of first appearance.
    """
    table = rows.pivot(index=["step", "epoch", "samples"], columns="source", values="entries").fillna(0)
    bucket = buckets(table.index.get_level_values("epoch").to_numpy(dtype=np.float64), most)
    last = np.append(np.flatnonzero(np.diff(bucket)), len(bucket) - 1)
    return table.iloc[last][list(dict.fromkeys(rows["source"]))]
