"""How often each stream was gone through."""

from collections.abc import Sequence

import pandas as pd

from mixer.report.plot import Plot, colours_of, line, panel
from mixer.report.run import Run, stream_names
from mixer.report.thinning import thin
from mixer.report.words import between, known, listed


def coverage(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the passes over each stream, a panel a run.

    Args:
        runs: The runs.
        most_points: Greatest number of points a line.

    Returns:
        The plot: a line a stream whose length is known.
    """
    colours = colours_of(stream_names(runs))
    end = max(run.clock["epoch"].max() for run in runs)
    tops = [rows["passes"].max() for run in runs for rows in _sized(run).values()]
    panels = [
        panel(
            run.name,
            [
                line(thin(rows, "passes", most_points), "passes", name, colours[name])
                for name, rows in _sized(run).items()
            ],
            end,
            range=[0, 1.05 * max(tops, default=0.0) or 1.0],
        )
        for run in runs
    ]
    caption = "Passes over each stream by epochs of the mixture; 1 is every sample once. " + " ".join(
        map(_in_words, runs)
    )
    return Plot("Passes over the streams", caption, panels, colours)


def _sized(run: Run) -> dict[str, pd.DataFrame]:
    return {name: rows for name, rows in run.streams.items() if rows["passes"].notna().any()}


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
    unknown = [f"{row['seen']:,.0f} samples of {name}" for name, row in last.items() if name not in passes]
    if unknown:
        words.append(f"{listed(unknown)} were seen, whose length is not known")
    return f"In {run.name} {'; '.join(words)}."
