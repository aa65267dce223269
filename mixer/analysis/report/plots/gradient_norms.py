"""Norm and noise of the gradient of each stream."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mixer.analysis.report.measurements import lines_by_stream, log_axis, smoothed
from mixer.analysis.report.plot import Plot, colours_of, panel
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import between, known

_TITLES = {"norm": "norm", "noise": "noise scale, samples"}
_Figures = dict[str, tuple[pd.DataFrame, pd.DataFrame]]  # by stream, raw and smoothed


def gradient_norms(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots gradient norm and noise scale of each stream, two panels per run that measured them.

    Two lines per stream.
    """
    colours = colours_of(stream_names(runs))
    end = max(run.clock["epoch"].max() for run in runs)
    drawn = {run.name: _figures(run) for run in runs if run.gradients}
    axes = {
        column: log_axis(pd.concat([rows[column] for one in drawn.values() for both in one.values() for rows in both]))
        for column in (_TITLES if drawn else ())
    }
    panels = [
        panel(f"{run}: {title}", lines_by_stream(figures, column, colours, most_points), end, **axes[column])
        for run, figures in drawn.items()
        for column, title in _TITLES.items()
    ]
    caption = (
        "Norm of the gradient of each stream's loss, and its noise scale (the number of samples at which noise equals "
        "signal), by epochs of data. Pale: every measurement; line: the same, smoothed. Left out where noise "
        "hides the gradient. " + " ".join(_in_words(run, drawn.get(run.name, {})) for run in runs)
    )
    having = {
        name
        for figures in drawn.values()
        for name, (raw, _) in figures.items()
        if raw[list(_TITLES)].notna().to_numpy().any()
    }
    key = {name: colour for name, colour in colours.items() if name in having}
    return Plot("Gradient norms and noise by stream", caption, panels, key, columns=2)


def _figures(run: Run) -> _Figures:
    # Signal and noise are smoothed before one is divided by the other: outliers would rule a mean of ratios.
    return {
        name: (_with_figures(rows), _with_figures(smoothed(rows, ["squared_norm", "variance"])))
        for name, rows in run.gradients.items()
    }


def _with_figures(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds norm and noise scale, NaN where they are not positive: a logarithmic axis has no place for them."""
    squared = rows["squared_norm"].where(rows["squared_norm"] > 0)
    noise = rows["variance"].where(rows["variance"] > 0) / squared
    return rows.assign(norm=np.sqrt(squared), noise=noise)


def _in_words(run: Run, figures: _Figures) -> str:
    if not figures:
        return f"In {run.name} no gradients were measured."
    words = []
    for column, text in (("norm", "the last norm"), ("noise", "the last noise scale")):
        last = known({name: float(smooth[column].iloc[-1]) for name, (_, smooth) in figures.items()})
        words.append(f"{text} (smoothed) is {between(last, '{:.3g}'.format) if last else 'not known'}")
    return f"In {run.name} {', '.join(words)}."
