"""The mixture: weights and realised shares, passes over the streams, and the content of replay buffers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.analysis.report.clocked import buckets, thin
from mixer.analysis.report.plot import Panel, Plot, colours_of, heat_map, line, panel
from mixer.analysis.report.run import Run, last_epoch, stream_names
from mixer.utils.text import between, known, listed

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
        for column, title in (("weight", "weights"), ("share", "share of the samples")):
            lines = [
                line(rows.dropna(), column, name, colours[name], stackgroup="shares", line={"width": 0.5})
                for name, rows in by_stream.items()
            ]
            panels.append(panel(f"{run.name}: {title}", lines, end, range=[0, 1], tickformat=".0%"))
    caption = (
        "The share of each stream by epochs of data: the requested weights, and the samples that were drawn. "
        + " ".join(map(_shares_in_words, runs))
    )
    return Plot("Mixture", caption, panels, colours, columns=2)


def shares(run: Run, most_points: int) -> dict[str, pd.DataFrame]:
    """Averages the mixture over stretches of the data clock, the same for all streams so that they sum to 1.

    Args:
        run: The run.
        most_points: Greatest number of stretches.

    Returns:
        By stream, one row per stretch: epoch and samples at its end, weight, and share of the samples.
    """
    steps = run.clock["step"].to_numpy()
    bucket = np.unique(buckets(run.clock["epoch"].to_numpy(), most_points), return_inverse=True)[1]
    ends = run.clock[["epoch", "samples"]].groupby(bucket).last()
    sums = {}
    for name, rows in run.streams.items():
        place = bucket[np.searchsorted(steps, rows["step"].to_numpy())]
        # A stream that came or went has no rows in some stretches: it gave nothing there.
        sums[name] = rows[["weight", "count"]].groupby(place).sum().reindex(ends.index, fill_value=0)
    total = sum(sums.values())
    parts = {name: (one / total).rename(columns={"count": "share"}) for name, one in sums.items()}
    return {name: ends.join(one) for name, one in parts.items()}


def _shares_in_words(run: Run) -> str:
    counts = {name: float(rows["count"].sum()) for name, rows in run.streams.items()}
    total = sum(counts.values()) or 1.0
    drawn = between({name: count / total for name, count in counts.items()}, "{:.1%}".format)
    weights = between({name: float(rows["weight"].iloc[-1]) for name, rows in run.streams.items()}, "{:.3f}".format)
    return f"In {run.name} a stream gave {drawn} of all samples; the last weights are {weights}."


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
        "Passes over each stream by epochs of the mixture; 1 is every sample once. "
        f"{'Dotted: the passes after which a stream leaves the mixture. ' if caps else ''}"
        + " ".join(map(_passes_in_words, runs))
    )
    return Plot("Passes over the streams", caption, panels, colours)


def _sized(run: Run) -> dict[str, pd.DataFrame]:
    return {name: rows for name, rows in run.streams.items() if rows["passes"].notna().any()}


def _caps(run: Run) -> dict[str, float]:
    return {name: cap for name, cap in run.caps.items() if name in _sized(run)}


def _cap(cap: float, stream: str, colour: str, end: float) -> go.Scatter:
    points = pd.DataFrame({"epoch": [0.0, end], "samples": [0, 0], "cap": [cap, cap]})
    return line(points, "cap", stream, colour, f"{stream}, cap", line={"dash": "dot", "width": 1}, hoverinfo="skip")


def _passes_in_words(run: Run) -> str:
    last = {name: rows.iloc[-1] for name, rows in run.streams.items()}
    passes, covered = (known({name: float(row[key]) for name, row in last.items()}) for key in ("passes", "coverage"))
    words = []
    if passes:
        least = min(covered, key=covered.__getitem__)
        words.append(f"the passes are {between(passes, '{:.2f}'.format)}")
        some = f"the least covered is {least}, {covered[least]:.1%} of its samples were seen"
        words.append(some if covered[least] < 1.0 else "every sample was seen")
    if caps := _caps(run):
        words.append(f"the cap is {between(caps, '{:g}'.format)}")
    unknown = [f"{row['seen']:,.0f} samples of {name}" for name, row in last.items() if name not in passes]
    if unknown:
        words.append(f"{listed(unknown)} were seen, whose length is not known")
    return f"In {run.name} {'; '.join(words)}."


def memory(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the entries of each replay buffer by source, stacked, one panel per buffer."""
    buffers = [(run.name, name, rows) for run in runs for name, rows in run.memories.items()]
    sources = list(dict.fromkeys(str(source) for _, _, rows in buffers for source in rows["source"].unique()))
    colours = colours_of(list(dict.fromkeys([*stream_names(runs), *sources])))
    panels = [
        panel(f"{run}: {name}", _stacked(rows, colours, most_points), last_epoch(runs), rangemode="tozero")
        for run, name, rows in buffers
    ]
    words = " ".join(_sources_in_words(*one) for one in buffers)
    caption = f"Entries of each replay buffer by source stream, by epochs of data. {words}"
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


def _sources_in_words(run: str, name: str, rows: pd.DataFrame) -> str:
    last = rows[rows["step"] == rows["step"].max()]
    counts = dict(zip(last["source"], last["entries"].astype(float), strict=True))
    return f"In {run}, {name} ends with {sum(counts.values()):,.0f} entries, {between(counts, '{:,.0f}'.format)}."


def memory_classes(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the entries of each replay buffer by class as a heat map, one panel per buffer with known classes."""
    buffers = [(run.name, name, rows) for run in runs for name, rows in run.memory_classes.items()]
    greatest = max((int(rows["entries"].max()) for _, _, rows in buffers), default=0)
    panels = [
        _of_classes(f"{run}: {name}", rows, last_epoch(runs), greatest, most_points) for run, name, rows in buffers
    ]
    caption = "Entries of each buffer by class, a row each, by epochs of data; brighter is more, blank is none."
    words = [_classes_in_words(*one) for one in buffers]
    return Plot("Classes in the memory", " ".join([caption, *words]), panels, columns=2)


def _of_classes(title: str, rows: pd.DataFrame, end: float, greatest: int, most_points: int) -> Panel:
    most = max(2, min(most_points - 1, _MOST_CELLS // rows["label"].nunique()))  # there is an edge more
    table = _held(rows, "label", most).sort_index(axis=1)
    epochs = table.index.get_level_values("epoch").to_numpy(dtype=np.float64)
    names = [_called(int(label)) for label in table.columns]
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


def _called(label: int) -> str:
    return "unknown" if label == _UNKNOWN else str(label)


def _classes_in_words(run: str, name: str, rows: pd.DataFrame) -> str:
    last = rows[(rows["step"] == rows["step"].max()) & (rows["entries"] > 0)]
    counts = {int(label): float(count) for label, count in zip(last["label"], last["entries"], strict=True)}
    unknown = counts.pop(_UNKNOWN, 0.0)
    words = [f"{unknown:,.0f} {'entry' if unknown == 1 else 'entries'} of unknown class"] if unknown else []
    if counts:
        each = between({f"class {label}": count for label, count in counts.items()}, "{:,.0f}".format)
        words.insert(0, f"{len(counts):,} {'class' if len(counts) == 1 else 'classes'}, the entries of one are {each}")
    return f"In {run}, {name} ends with {'; '.join(words) or 'no entries'}."
