"""Of which classes the entries of replay buffers are."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mixer.analysis.report.clocked import held
from mixer.analysis.report.plot import Panel, Plot, panel
from mixer.analysis.report.run import Run
from mixer.utils.text import between

_UNKNOWN = -1
_COLOURS = "Cividis"  # the same to those who do not tell red from green; its lightness alone shows the order
_MOST_CELLS = 20_000


def memory_classes(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots how many entries of each class a buffer holds, a panel a buffer.

    Args:
        runs: The runs.
        most_points: Greatest number of points a line.

    Returns:
        The plot: a heat map, a row a class; without panels if no class is known.
    """
    buffers = [(run.name, name, rows) for run in runs for name, rows in run.memory_classes.items()]
    end = max(run.clock["epoch"].max() for run in runs)
    greatest = max((int(rows["entries"].max()) for _, _, rows in buffers), default=0)
    panels = [_panel(f"{run}: {name}", rows, end, greatest, most_points) for run, name, rows in buffers]
    caption = "Entries of each buffer by class, a row each, by epochs of data; brighter is more, blank is none."
    words = [_in_words(*one) for one in buffers]
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


def _in_words(run: str, name: str, rows: pd.DataFrame) -> str:
    last = rows[(rows["step"] == rows["step"].max()) & (rows["entries"] > 0)]
    counts = {_called(label): float(count) for label, count in zip(last["label"], last["entries"], strict=True)}
    unknown = counts.pop(_called(_UNKNOWN), 0.0)
    words = [f"{unknown:,.0f} {'entry' if unknown == 1 else 'entries'} of unknown class"] if unknown else []
    if counts:
        each = between({f"class {name}": count for name, count in counts.items()}, "{:,.0f}".format)
        words.insert(0, f"{len(counts):,} {'class' if len(counts) == 1 else 'classes'}, the entries of one are {each}")
    return f"In {run}, {name} ends with {'; '.join(words) or 'no entries'}."
