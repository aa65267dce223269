"""Passes over each stream."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from mixer.analysis.report.clocked import thin
from mixer.analysis.report.plot import Plot, colours_of, line, panel
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import between, known, listed

# A cap that is further off than this, in multiples of the most passes, would press all lines flat: it is left to words.
_FARTHEST_CAP = 2.0


def coverage(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the passes over each stream of known length and its cap, one panel per run."""
    colours = colours_of(stream_names(runs))
    end = max(run.clock["epoch"].max() for run in runs)
    top = max((rows["passes"].max() for run in runs for rows in _sized(run).values()), default=0.0)
    caps = [cap for run in runs for cap in _caps(run).values() if cap <= _FARTHEST_CAP * top]
    panels = [
        panel(
            run.name,
            [
                *(
                    line(thin(rows, "passes", most_points), "passes", name, colours[name])
                    for name, rows in _sized(run).items()
                ),
                *(_cap(cap, name, colours[name], end) for name, cap in _caps(run).items() if cap in caps),
            ],
            end,
            range=[0, 1.05 * max([top, *caps]) or 1.0],
        )
        for run in runs
    ]
    caption = (
        "Passes over each stream by epochs of the mixture; 1 is every sample once. "
        f"{'Dotted: the passes after which a stream leaves the mixture. ' if caps else ''}"
        + " ".join(map(_in_words, runs))
    )
    return Plot("Passes over the streams", caption, panels, colours)


def _sized(run: Run) -> dict[str, pd.DataFrame]:
    return {name: rows for name, rows in run.streams.items() if rows["passes"].notna().any()}


def _caps(run: Run) -> dict[str, float]:
    return {name: cap for name, cap in run.caps.items() if name in _sized(run)}


def _cap(cap: float, stream: str, colour: str, end: float) -> go.Scatter:
    points = pd.DataFrame({"epoch": [0.0, end], "samples": [0, 0], "cap": [cap, cap]})
    return line(points, "cap", stream, colour, f"{stream}, cap", line={"dash": "dot", "width": 1}, hoverinfo="skip")


def _in_words(run: Run) -> str:
    last = {name: rows.iloc[-1] for name, rows in run.streams.items()}
    passes = known({name: float(row["passes"]) for name, row in last.items()})
    words = []
    if passes:
        covered = known({name: float(row["coverage"]) for name, row in last.items()})
        least = min(covered, key=covered.__getitem__)
        words.append(f"the passes are {between(passes, '{:.2f}'.format)}")
        if covered[least] < 1.0:
            words.append(f"the least covered is {least}, {covered[least]:.1%} of its samples were seen")
        else:
            words.append("every sample was seen")
    if caps := _caps(run):
        words.append(f"the cap is {between(caps, '{:g}'.format)}")
    unknown = [f"{row['seen']:,.0f} samples of {name}" for name, row in last.items() if name not in passes]
    if unknown:
        words.append(f"{listed(unknown)} were seen, whose length is not known")
    return f"In {run.name} {'; '.join(words)}."
