"""How many samples the workers had been asked for in time."""

from collections.abc import Sequence

from mixer.analysis.report.clocked import averaged
from mixer.analysis.report.plot import Plot, colours_of, line, panel
from mixer.analysis.report.run import Run


def prefetch(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the share of prefetch hits, a line a run.

    Args:
        runs: The runs.
        most_points: Greatest number of points a line.

    Returns:
        The plot; without panels if no run had workers.
    """
    colours = colours_of([run.name for run in runs])
    end = max(run.clock["epoch"].max() for run in runs)
    lines = []
    for run in runs:
        rows = averaged(run.timings[run.timings["hits"] + run.timings["misses"] > 0], ["hits", "misses"], most_points)
        if len(rows):
            shares = rows.assign(share=rows["hits"] / (rows["hits"] + rows["misses"]))
            lines.append(line(shares, "share", run.name, colours[run.name]))
    panels = [panel("Hits", lines, end, range=[0, 1.05], tickformat=".0%")] if lines else []
    caption = (
        "Share of the samples that workers had been asked for ahead, by epochs of data; the others are waited for. "
        + " ".join(map(_in_words, runs))
    )
    return Plot("Prefetching", caption, panels, colours)


def _in_words(run: Run) -> str:
    hits, misses = int(run.timings["hits"].sum()), int(run.timings["misses"].sum())
    if not hits + misses:
        return f"In {run.name} there were no workers."
    return f"In {run.name} it is {hits / (hits + misses):.1%}: {misses:,} samples were not foreseen."
