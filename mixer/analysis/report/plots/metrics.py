"""Metrics of `compute_metrics` for each evaluation set."""

from collections.abc import Sequence

import pandas as pd

from mixer.analysis.report.clocked import thin
from mixer.analysis.report.plot import Plot, colours_of, line, panel
from mixer.analysis.report.run import Run, stream_names
from mixer.utils.text import between

# More panels are not looked at; all metrics are in the tables.
MOST_METRICS = 12


def metrics(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the metrics of evaluation sets, one panel per metric and run, one line per set."""
    sets = dict.fromkeys([*stream_names(runs), *(name for run in runs for name in run.metrics)])
    colours = colours_of([name for name in sets if any(name in run.metrics for run in runs)])
    end = max(run.clock["epoch"].max() for run in runs)
    known = list(dict.fromkeys(name for run in runs for rows in run.metrics.values() for name in rows["metric"]))
    drawn = [(metric, run, _of(run, metric)) for metric in known[:MOST_METRICS] for run in runs]
    style = {"mode": "lines+markers"}
    panels = [
        panel(
            f"{run.name}: {metric}",
            [line(thin(rows, "value", most_points), "value", name, colours[name], **style) for name, rows in own],
            end,
        )
        for metric, run, own in drawn
        if own
    ]
    words = [
        f"In {run.name} the last {metric} is "
        f"{between({name: float(rows['value'].iloc[-1]) for name, rows in own}, '{:.3g}'.format)}."
        for metric, run, own in drawn
        if own
    ]
    left_out = len(known) - MOST_METRICS
    more = [f"{left_out} more metrics are in the table of all streams."] if left_out > 0 else []
    caption = "Results of compute_metrics for each evaluation set, by epochs of data. " + " ".join([*words, *more])
    return Plot("Metrics", caption, panels, colours)


def _of(run: Run, metric: str) -> list[tuple[str, pd.DataFrame]]:
    parts = ((name, rows[rows["metric"] == metric]) for name, rows in run.metrics.items())
    return [(name, rows) for name, rows in parts if len(rows)]
