"""The mixture: weights and realised shares, passes over the streams, and the content of replay buffers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.tools.report.clocked import buckets, thin
from mixer.tools.report.plot import Panel, Plot, colours_of, heat_map, label, line, panel
from mixer.tools.report.run import Run, last_epoch, stream_names

# Of more stretches than can be told apart, shares that go up and down by one sample are a fringe.
_MOST_STRETCHES = 150
# A cap that is further off than this, in multiples of the most passes, would press all lines flat: it is left to words.
_FARTHEST_CAP = 2.0
_UNKNOWN = -1
_COLOURS = "Cividis"  # the same to those who do not tell red from green; its lightness alone shows the order
_MOST_CELLS = 20_000


def mixture(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots weights and realised shares, stacked, two panels per run."""
    colours, end = colours_of(stream_names(runs)), last_epoch(runs)
    panels = []
    for run in runs:
        by_stream = shares(run, min(most_points, _MOST_STRETCHES))
        for column, title in (("weight", "weights"), ("share", f"share of the {run.unit}")):
            lines = [
                line(rows.dropna(), column, name, colours[name], stackgroup="shares", line={"width": 0.5})
                for name, rows in by_stream.items()
            ]
            panels.append(panel(f"{run.name}: {title}", lines, end, range=[0, 1], tickformat=".0%"))
    on_top = any((run.clock["total"] > run.clock["batch_size"]).any() for run in runs)
    why = "a memory was replayed on top of the weights (additional samples, beyond the batch size), or " * on_top
    caption = (
        f"Left: the weights that were requested; right: what was drawn. Where the two differ, {why}a stream "
        "could not give what was asked for; a band that narrows to nothing is starved."
    )
    return Plot("Mixture", caption, panels, colours, columns=2)


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
    parts = {name: (one / total).rename(columns={weight: "weight", amount: "share"}) for name, one in sums.items()}
    return {name: ends.join(one) for name, one in parts.items()}


def coverage(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the passes over each stream of known length and its cap, one panel per run."""
    colours, end = colours_of(stream_names(runs)), last_epoch(runs)
    sized = {run.name: _sized(run) for run in runs}
    top = max((rows["passes"].max() for parts in sized.values() for rows in parts.values()), default=0.0)
    caps = [cap for run in runs for cap in _caps(run).values() if cap <= _FARTHEST_CAP * top]
    axis = {"range": [0, 1.05 * max([top, *caps]) or 1.0]}
    panels = []
    for run in runs:
        rows_by_name = sized[run.name].items()
        lines = [line(thin(rows, "passes", most_points), "passes", name, colours[name]) for name, rows in rows_by_name]
        lines += [_cap(cap, name, colours[name], end) for name, cap in _caps(run).items() if cap in caps]
        panels.append(panel(run.name, lines, end, **axis))
    caption = (
        "How often each stream was seen: above 1 its samples repeat, and from about 4 on they teach little that is new."
        f"{' Dotted: the passes after which a stream leaves the mixture.' if caps else ''}"
    )
    return Plot("Passes over the streams", caption, panels, colours)


def _sized(run: Run) -> dict[str, pd.DataFrame]:
    return {name: rows for name, rows in run.streams.items() if rows["passes"].notna().any()}


def _caps(run: Run) -> dict[str, float]:
    return {name: cap for name, cap in run.caps.items() if name in _sized(run)}


def _cap(cap: float, stream: str, colour: str, end: float) -> go.Scatter:
    points = pd.DataFrame({"epoch": [0.0, end], "samples": [0, 0], "cap": [cap, cap]})
    return line(points, "cap", stream, colour, f"{stream}, cap", line={"dash": "dot", "width": 1}, hoverinfo="skip")


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
        for source, entries in _held(rows, "source", most_points).items()
    ]


def _held(rows: pd.DataFrame, column: str, most: int) -> pd.DataFrame:
    """Tabulates the entries of a replay buffer.

    Args:
        rows: One row per log entry and group: step, epoch, samples, entries, and the column.
        column: The column of the groups, such as `"source"`.
        most: Greatest number of log entries: each stretch of the data clock keeps its last.

    Returns:
        Numbers of entries, one row per log entry (the index: step, epoch, samples) and one column per group, in order
        of first appearance.
    """
    table = rows.pivot(index=["step", "epoch", "samples"], columns=column, values="entries").fillna(0)
    bucket = buckets(table.index.get_level_values("epoch").to_numpy(dtype=np.float64), most)
    last = np.append(np.flatnonzero(np.diff(bucket)), len(bucket) - 1)
    return table.iloc[last][list(dict.fromkeys(rows[column]))]


def memory_classes(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the entries of each replay buffer by class as a heat map, one panel per buffer with known classes."""
    buffers = [(run, name, rows) for run in runs for name, rows in run.memory_classes.items()]
    greatest = max((int(rows["entries"].max()) for _, _, rows in buffers), default=0)
    panels = [
        _of_classes(f"{run.name}: {name}", rows, run.class_names, last_epoch(runs), greatest, most_points)
        for run, name, rows in buffers
    ]
    caption = "Entries of each buffer by class, a row each: brighter is more, blank is a class that cannot be replayed."
    return Plot("Classes in the memory", caption, panels, columns=2)


def _of_classes(
    title: str, rows: pd.DataFrame, called: Sequence[str], end: float, greatest: int, most_points: int
) -> Panel:
    most = max(2, min(most_points - 1, _MOST_CELLS // rows["label"].nunique()))  # there is an edge more
    table = _held(rows, "label", most).sort_index(axis=1)
    epochs = table.index.get_level_values("epoch").to_numpy(dtype=np.float64)
    names = [_called(int(label), called) for label in table.columns]
    trace = heat_map(
        table.where(table > 0).to_numpy(dtype=np.float32).T,  # none is blank
        "class %{customdata}: %{z:,} entries",
        [[name] * len(epochs) for name in names],
        x=np.concatenate([[0.0], epochs]),  # a cell says what was held at its right edge
        y=list(range(len(names))),
        colorscale=_COLOURS,
        zmin=0,
        zmax=greatest,
        colorbar={"title": {"text": "entries", "side": "right"}},
    )
    every = -(-len(names) // 12)  # of more rows the names would stand on each other
    axis = {"tickvals": list(range(0, len(names), every)), "ticktext": names[::every], "showgrid": False}
    made = panel(title, [trace], end, **axis)
    made.figure.update_layout(hovermode="closest", yaxis_title_text="class")
    return made


def _called(number: int, names: Sequence[str]) -> str:
    return "unknown" if number == _UNKNOWN else label(names[number]) if 0 <= number < len(names) else str(number)
