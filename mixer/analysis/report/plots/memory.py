"""What replay buffers hold."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from mixer.analysis.report.clocked import held
from mixer.analysis.report.plot import Plot, colours_of, line, panel
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import between


def memory(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots what each buffer holds by where it came from, stacked, a panel a buffer.

    Args:
        runs: The runs.
        most_points: Greatest number of points a line.

    Returns:
        The plot: an area a source; without panels if no run had a buffer.
    """
    sources = [str(source) for run in runs for rows in run.memories.values() for source in rows["source"].unique()]
    colours = colours_of(list(dict.fromkeys([*stream_names(runs), *sources])))
    end = max(run.clock["epoch"].max() for run in runs)
    panels = [
        panel(
            f"{run.name}: {name}",
            _lines(rows, colours, most_points),
            end,
            rangemode="tozero",
        )
        for run in runs
        for name, rows in run.memories.items()
    ]
    words = " ".join(_in_words(run.name, name, rows) for run in runs for name, rows in run.memories.items())
    caption = f"Entries of each replay buffer by the stream that they came from, by epochs of data. {words}"
    return Plot("What the memory holds", caption, panels, {name: colours[name] for name in dict.fromkeys(sources)})


def _lines(rows: pd.DataFrame, colours: Mapping[str, str], most_points: int) -> list[go.Scatter]:
    """Draws a line a source, all with the same points, for they stand on each other."""
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
