"""The learning rate over the data clock."""

from collections.abc import Sequence

from mixer.analysis.report.clocked import thin
from mixer.analysis.report.plot import Plot, colours_of, line, panel
from mixer.analysis.report.run import Run


def learning_rate(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots the learning rate and, where the batch size scales it, the factor, one line per run."""
    colours = colours_of([run.name for run in runs])
    end = max(run.clock["epoch"].max() for run in runs)
    columns = {"learning_rate": "Learning rate"}
    if any((run.clock["learning_rate_factor"] != 1.0).any() for run in runs):
        columns["learning_rate_factor"] = "Factor from the batch size, a part of it"
    panels = [
        panel(
            title,
            [line(thin(run.clock, column, most_points), column, run.name, colours[run.name]) for run in runs],
            end,
            rangemode="tozero",
        )
        for column, title in columns.items()
    ]
    caption = "The learning rate of each step, by epochs of data. " + " ".join(map(_in_words, runs))
    return Plot("Learning rate", caption, panels, colours)


def _in_words(run: Run) -> str:
    rates, factors = run.clock["learning_rate"].dropna(), run.clock["learning_rate_factor"]
    if rates.empty:
        return f"In {run.name} it is not known."
    epoch = run.clock["epoch"].iloc[int(run.clock["learning_rate"].argmax())]
    words = (
        f"In {run.name} it peaks at {rates.max():.3g} in epoch {epoch:.2f}, and {rates.iloc[-1]:.3g} in the last step; "
    )
    if (factors == 1.0).all():
        return words + "the batch size does not scale it."
    return words + f"the batch size multiplies it by {factors.min():.3g} to {factors.max():.3g}."
