"""The contents of a report: findings, tables and plots."""

from collections.abc import Sequence
from pathlib import Path

from mixer.tools.records.forks import forks_in_words, paired_differences
from mixer.tools.records.run import Run
from mixer.tools.records.runs import declared, read_runs
from mixer.tools.report.answer import answer
from mixer.tools.report.findings import findings_of
from mixer.tools.report.grouping import grouped, main_streams
from mixer.tools.report.plots import PLOTS
from mixer.tools.report.plots.losses import MOST_METRICS, objective
from mixer.tools.report.plots.mixture import mixture
from mixer.tools.report.run_kinds import Report, kind_of
from mixer.tools.report.tables import differing_streams, summary_rows
from mixer.utils.text import listed

# A point takes about 21 bytes of the page, so that all of them stay below 3 MB however many lines there are.
_POINTS_PER_PAGE = 120_000
_MOST_POINTS_PER_LINE, _FEWEST_POINTS_PER_LINE = 2_000, 20
_LINES_PER_RUN, _LINES_PER_STREAM, _LINES_PER_MEASURED_STREAM = 10, 6, 4


def read_report(folders: Sequence[str | Path]) -> Report:
    """Reads finished or running runs.

    Args:
        folders: Output folders of trainers, at least one.

    Raises:
        ValueError: If a folder appears twice or holds no run with a step, or the runs are of different kinds.
    """
    paths = [Path(folder) for folder in folders]
    if (kind := kind_of(paths)) is not None:
        return kind.contents(paths)
    runs = read_runs(paths)
    findings = findings_of(runs)
    goal = declared(runs)
    targets = () if goal is None else goal.names
    main = main_streams(runs, [*targets, *(name for finding in findings for name in finding.streams)])
    drawn = [grouped(run, main) for run in runs]
    most_points = points_per_line(drawn)
    plots = [plot(drawn, most_points) for plot in PLOTS]
    first = [objective(runs, most_points), mixture(drawn, most_points)]  # the former of targets drawn as one too
    notes = (
        *(forks_in_words(paired_differences(paths)), differing_streams(runs)),
        *(_in_intervals(runs), _drawn_as_one(runs, main)),
    )
    return Report(
        [run.name for run in runs],
        summary_rows(runs),
        [plot for plot in plots if plot.panels],
        " ".join(text for text in notes if text),
        runs,
        findings,
        answer(runs),
        [plot for plot in first if plot.panels],
    )


def points_per_line(runs: Sequence[Run]) -> int:
    """Gives the greatest number of points per line that keeps the page small."""
    num_lines = sum(_LINES_PER_RUN + _LINES_PER_STREAM * len(run.streams) for run in runs)
    num_lines += _LINES_PER_MEASURED_STREAM * sum(len(run.gradients) for run in runs)
    num_lines += sum(min(MOST_METRICS, rows["metric"].nunique()) for run in runs for rows in run.metrics.values())
    num_lines += sum(rows["source"].nunique() for run in runs for rows in run.memories.values())
    return max(_FEWEST_POINTS_PER_LINE, min(_MOST_POINTS_PER_LINE, _POINTS_PER_PAGE // num_lines))


def _in_intervals(runs: Sequence[Run]) -> str:
    longest = {run.name: run.interval_steps for run in runs if run.interval_steps > 1}
    if not longest:
        return ""
    return (
        f"The ledger of {listed([f'{name} has a row for {steps} steps' for name, steps in longest.items()])}: there a "
        "stream's loss and weight are means over them, and its samples are sums."
    )


def _drawn_as_one(runs: Sequence[Run], main: Sequence[str]) -> str:
    others = {name for run in runs for name in (*run.streams, *run.evaluations)} - set(main)
    if not others:
        return ""
    return (
        f"The plots show {len(main)} streams separately: those with findings and those with the largest share of the "
        f"samples in any run. The {len(others)} others are drawn as one; the tables list all streams."
    )
