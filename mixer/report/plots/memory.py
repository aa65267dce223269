"""What replay buffers hold."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mixer.report.plot import Plot, colours_of, line, panel
from mixer.report.run import Run, stream_names
from mixer.report.thinning import buckets
from mixer.report.words import between


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
            [
                line(part, "entries", str(source), colours[str(source)], stackgroup="entries", line={"width": 0.5})
                for source, part in _thinned(rows, most_points).groupby("source", sort=False)
            ],
            end,
            rangemode="tozero",
        )
        for run in runs
        for name, rows in run.memories.items()
    ]
    words = " ".join(_in_words(run.name, name, rows) for run in runs for name, rows in run.memories.items())
    caption = f"Entries of each replay buffer by the stream that they came from, by epochs of data. {words}"
    return Plot("What the memory holds", caption, panels, {name: colours[name] for name in dict.fromkeys(sources)})


def _thinned(rows: pd.DataFrame, most_points: int) -> pd.DataFrame:
    """Leaves out the same steps of all sources, whose areas stand on each other."""
    steps, places = np.unique(rows["step"].to_numpy(), return_index=True)
    bucket = buckets(rows["epoch"].to_numpy()[places], most_points)
    last = np.append(np.flatnonzero(np.diff(bucket)), len(steps) - 1)
    return rows[rows["step"].isin(steps[last])]


def _in_words(run: str, name: str, rows: pd.DataFrame) -> str:
    last = rows[rows["step"] == rows["step"].max()]
    counts = dict(zip(last["source"], last["entries"].astype(float), strict=True))
    return f"In {run}, {name} ends with {sum(counts.values()):,.0f} entries, {between(counts, '{:,.0f}'.format)}."
