"""Entries of replay buffers, by source and by class."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.analysis.report.clocked import held
from mixer.analysis.report.plot import Panel, Plot, colours_of, line, panel
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import between

_UNKNOWN = -1
_COLOURS = "Cividis"  # the same to those who do not tell red from green; its lightness alone shows the order
_MOST_CELLS = 20_000


def memory(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the entries of each replay buffer by source, stacked, one panel per buffer."""
    sources = [str(source) for run in runs for rows in run.memories.values() for source in rows["source"].unique()]
    colours = colours_of(list(dict.fromkeys([*stream_names(runs), *sources])))
    end = max(run.clock["epoch"].max() for run in runs)
    panels = [
        panel(f"{run.name}: {name}", _lines(rows, colours, most_points), end, rangemode="tozero")
        for run in runs
        for name, rows in run.memories.items()
    ]
    words = " ".join(_in_words(run.name, name, rows) for run in runs for name, rows in run.memories.items())
    caption = f"Entries of each replay buffer by source stream, by epochs of data. {words}"
    return Plot("Replay memory", caption, panels, {name: colours[name] for name in dict.fromkeys(sources)})


def _lines(rows: pd.DataFrame, colours: Mapping[str, str], most_points: int) -> list[go.Scatter]:
    """Draws a line per source, all with the same points, since they are stacked."""
    table = held(rows, "source", most_points)
    by_source = {str(source): entries.rename("entries").reset_index() for source, entries in table.items()}
    return [
        line(points, "entries", source, colours[source], stackgroup="entries", line={"width": 0.5})
        for source, points in by_source.items()
    ]


def _in_words(run: str, name: str, rows: pd.DataFrame) -> str:
    last = rows[rows["step"] == rows["step"].max()]
    counts = dict(zip(last["source"], last["entries"].astype(float), strict=True))
    return f"In {run}, {name} ends with {sum(counts.values()):,.0f} entries, {between(counts, '{:,.0f}'.format)}."


def memory_classes(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the entries of each replay buffer by class as a heat map, one panel per buffer with known classes."""
    buffers = [(run.name, name, rows) for run in runs for name, rows in run.memory_classes.items()]
    end = max(run.clock["epoch"].max() for run in runs)
    greatest = max((int(rows["entries"].max()) for _, _, rows in buffers), default=0)
    panels = [_panel(f"{run}: {name}", rows, end, greatest, most_points) for run, name, rows in buffers]
    caption = "Entries of each buffer by class, a row each, by epochs of data; brighter is more, blank is none."
    words = [_classes_in_words(*one) for one in buffers]
    return Plot("Classes in the memory", " ".join([caption, *words]), panels, columns=2)


def _panel(title: str, rows: pd.DataFrame, end: float, greatest: int, most_points: int) -> Panel:
    most = max(2, min(most_points - 1, _MOST_CELLS // rows["label"].nunique()))  # there is an edge more
    table = held(rows, "label", most).sort_index(axis=1)
    epochs = table.index.get_level_values("epoch").to_numpy(dtype=np.float64)
    names = [_called(int(label)) for label in table.columns]
    trace = go.Heatmap(
        # A cell says what was held at its right edge.
        x=np.concatenate([[0.0], epochs]),
        y=list(range(len(names))),
        z=table.where(table > 0).to_numpy(dtype=np.float32).T,  # none is blank
        customdata=[[name] * len(epochs) for name in names],
        hovertemplate="class %{customdata}: %{z:,} entries<extra></extra>",
        hoverongaps=False,
        colorscale=_COLOURS,
        zmin=0,
        zmax=greatest,
        colorbar={"thickness": 10, "outlinewidth": 0, "title": {"text": "entries", "side": "right"}},
    )
    every = -(-len(names) // 12)  # of more rows the names would stand on each other
    axis = {"tickvals": list(range(0, len(names), every)), "ticktext": names[::every], "showgrid": False}
    made = panel(title, [], end, **axis)
    made.figure.add_trace(trace)
    made.figure.update_layout(hovermode="closest", yaxis_title_text="class")
    return made


def _called(label: int) -> str:
    return "unknown" if label == _UNKNOWN else str(label)


def _classes_in_words(run: str, name: str, rows: pd.DataFrame) -> str:
    last = rows[(rows["step"] == rows["step"].max()) & (rows["entries"] > 0)]
    counts = {_called(label): float(count) for label, count in zip(last["label"], last["entries"], strict=True)}
    unknown = counts.pop(_called(_UNKNOWN), 0.0)
    words = [f"{unknown:,.0f} {'entry' if unknown == 1 else 'entries'} of unknown class"] if unknown else []
    if counts:
        each = between({f"class {name}": count for name, count in counts.items()}, "{:,.0f}".format)
        words.insert(0, f"{len(counts):,} {'class' if len(counts) == 1 else 'classes'}, the entries of one are {each}")
    return f"In {run}, {name} ends with {'; '.join(words) or 'no entries'}."
