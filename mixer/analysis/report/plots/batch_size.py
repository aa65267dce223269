"""The batch size over the data clock."""

from collections.abc import Sequence

from mixer.analysis.report.clocked import thin
from mixer.analysis.report.plot import Plot, colours_of, line, panel
from mixer.analysis.report.run import Run


def batch_size(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the requested batch size, one line per run."""
    colours = colours_of([run.name for run in runs])
    lines = [
        # A point stands at the end of its step: the line is upright before it.
        line(thin(run.clock, "batch_size", most_points), "batch_size", run.name, colours[run.name], line_shape="vh")
        for run in runs
    ]
    end = max(run.clock["epoch"].max() for run in runs)
    caption = "Samples of a step, over all ranks, by epochs of data. " + " ".join(map(_in_words, runs))
    return Plot("Batch size", caption, [panel("Samples", lines, end, rangemode="tozero")], colours)


def _in_words(run: Run) -> str:
    sizes = run.clock["batch_size"]
    if sizes.min() == sizes.max():
        return f"In {run.name} it stays at {sizes.iloc[0]:,}."
    return (
        f"In {run.name} it goes from {sizes.iloc[0]:,} to {sizes.iloc[-1]:,} (least {sizes.min():,}, greatest "
        f"{sizes.max():,})."
    )
