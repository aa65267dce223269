"""Rewards of rounds of generation, by stream of the prompts."""

from collections.abc import Sequence

from mixer.tools.records.run import Run
from mixer.tools.records.runs import last_epoch, stream_names
from mixer.tools.report.measurements import pale_and_smooth, smoothed
from mixer.tools.report.plot import Plot, colours_of, panel

_FIGURES = {"reward": "reward", "silent": "groups without signal", "mean_length": "tokens of a completion", "kl": "KL"}


def rewards(runs: Sequence[Run], most_points: int) -> Plot:
    """Plots what rounds have shown, one panel per figure and run, one line per stream."""
    names = [name for name in stream_names(runs) if any(name in run.rewards for run in runs)]
    colours, panels = colours_of(names), []
    for column, title in _FIGURES.items():
        for run in runs:
            own = {name: rows[rows[column].notna()] for name, rows in run.rewards.items()}
            courses = {name: (rows, smoothed(rows, [column])) for name, rows in own.items() if len(rows)}
            lines = [
                trace
                for name, course in courses.items()
                for trace in pale_and_smooth(course, column, name, colours[name], most_points)
            ]
            if lines:
                panels.append(panel(f"{run.name}: {title}", lines, last_epoch(runs)))
    caption = (
        "Pale: means of each round; line: smoothed. A group is without signal if all completions of its "
        "prompt have equal rewards: such prompts are solved, or hopeless, and teach nothing."
    )
    return Plot("Rewards", caption, panels, colours)
