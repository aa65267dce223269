"""How far the streams' gradients point the same way."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mixer.report.measurements import axis_with_zero, pale_and_smooth, smoothed
from mixer.report.plot import NUM_COLOURS, Plot, colours_of, panel
from mixer.report.run import Run, stream_names
from mixer.report.words import between

_SUMMARY = {"least": "min", "mean": "mean", "greatest": "max"}


def gradient_cosines(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the cosines between streams, a panel a run that measured them.

    Args:
        runs: The runs.
        most_points: Greatest number of points a line.

    Returns:
        The plot: two lines a pair, or those of the least, the mean and the greatest where there are more pairs than
        colours; without panels if no run has a pair.
    """
    by_run = {run.name: _pairs(run, stream_names(runs)) for run in runs}
    by_run = {name: pairs for name, pairs in by_run.items() if pairs}
    keys = list(dict.fromkeys(key for pairs in by_run.values() for key in pairs))
    if too_many := len(keys) > NUM_COLOURS:
        drawn, keys = {name: _summary(pairs) for name, pairs in by_run.items()}, list(_SUMMARY)
    else:
        drawn = by_run
    colours, end = colours_of(keys), max(run.clock["epoch"].max() for run in runs)
    axis = axis_with_zero([rows["cosine"] for lines in drawn.values() for rows in lines.values()])
    panels = [
        panel(
            name,
            [
                one
                for key, rows in lines.items()
                for one in pale_and_smooth(rows, smoothed(rows, ["cosine"]), "cosine", key, colours[key], most_points)
            ],
            end,
            **axis,
        )
        for name, lines in drawn.items()
    ]
    caption = (
        "Cosine of the angle between the gradients of two streams in the same update, by epochs of data: 1 where they "
        "pull the same way, below 0 against each other; noise draws it to 0. Pale: every measurement; line: the same, "
        f"smoothed. {'Of the many pairs the least, the mean and the greatest are drawn. ' if too_many else ''}"
        + " ".join(_in_words(run, by_run.get(run.name, {})) for run in runs)
    )
    return Plot("Cosines between streams' gradients", caption, panels, colours)


def _pairs(run: Run, names: list[str]) -> dict[str, pd.DataFrame]:
    """Gives the rows of each pair that has a cosine, called the same in runs whose streams are in another order."""
    places = {name: place for place, name in enumerate(names)}
    rows = run.cosines[np.isfinite(run.cosines["cosine"])]
    return {
        " and ".join(sorted(map(str, pair), key=lambda name: places.get(name, len(places)))): part
        for pair, part in rows.groupby(["stream", "other"], sort=False)
    }


def _summary(pairs: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    measurements = pd.concat(pairs.values()).groupby("step")
    place = measurements[["epoch", "samples"]].first()
    return {key: place.assign(cosine=measurements["cosine"].agg(how)) for key, how in _SUMMARY.items()}


def _in_words(run: Run, pairs: dict[str, pd.DataFrame]) -> str:
    if not pairs:
        return f"In {run.name} none was measured."
    means = {key: float(rows["cosine"].mean()) for key, rows in pairs.items()}
    return f"In {run.name} it is {between(means, '{:.2f}'.format)}, on average over the run."
