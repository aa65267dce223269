"""Weights of the mixture and realised shares."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mixer.analysis.report.clocked import buckets
from mixer.analysis.report.plot import Panel, Plot, colours_of, line, panel
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import between

# Of more stretches than can be told apart, shares that go up and down by one sample are a fringe.
_MOST_STRETCHES = 150


def mixture(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots weights and realised shares, stacked, two panels per run."""
    colours = colours_of(stream_names(runs))
    end = max(run.clock["epoch"].max() for run in runs)
    panels = [one for run in runs for one in _panels(run, colours, end, most_points)]
    caption = (
        "The share of each stream by epochs of data: the requested weights, and the samples that were drawn. "
        + " ".join(map(_in_words, runs))
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
    weights, counts = (sum(one[column] for one in sums.values()) for column in ("weight", "count"))
    return {
        name: ends.assign(weight=one["weight"] / weights, share=one["count"] / counts) for name, one in sums.items()
    }


def _panels(run: Run, colours: dict[str, str], end: float, most_points: int) -> list[Panel]:
    by_stream = shares(run, min(most_points, _MOST_STRETCHES))
    return [
        panel(
            f"{run.name}: {title}",
            [
                line(rows.dropna(), column, name, colours[name], stackgroup="shares", line={"width": 0.5})
                for name, rows in by_stream.items()
            ],
            end,
            range=[0, 1],
            tickformat=".0%",
        )
        for column, title in (("weight", "weights"), ("share", "share of the samples"))
    ]


def _in_words(run: Run) -> str:
    counts = {name: float(rows["count"].sum()) for name, rows in run.streams.items()}
    total = sum(counts.values()) or 1.0
    taken = {name: count / total for name, count in counts.items()}
    asked = {name: float(rows["weight"].iloc[-1]) for name, rows in run.streams.items()}
    return (
        f"In {run.name} a stream gave {between(taken, '{:.1%}'.format)} of all samples; the last weights are "
        f"{between(asked, '{:.3f}'.format)}."
    )
