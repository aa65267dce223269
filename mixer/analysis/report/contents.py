"""The contents of a report: findings, tables and plots."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mixer.analysis.report.findings import Finding, changed, findings_of
from mixer.analysis.report.grouping import grouped, main_streams
from mixer.analysis.report.kinds import kind_of
from mixer.analysis.report.plot import Plot
from mixer.analysis.report.plots import PLOTS
from mixer.analysis.report.plots.losses import MOST_METRICS
from mixer.analysis.report.run import Run, read_runs
from mixer.analysis.report.tables import differing_streams, stream_figures, summary_rows

# A point takes about 21 bytes of the page, so that all of them stay below 3 MB however many lines there are.
_POINTS_PER_PAGE = 120_000
_MOST_POINTS_PER_LINE, _FEWEST_POINTS_PER_LINE = 2_000, 20
_LINES_PER_RUN, _LINES_PER_STREAM = 10, 6
_LINES_PER_STREAM_COMPARED = 4
_LINES_PER_STREAM_MEASURED = 4


@dataclass(frozen=True)
class Report:
    """The contents of a report.

    Args:
        names: Names of the runs.
        runs: The trainers' runs; empty for runs of another kind.
        findings: Possible problems of the runs.
        changes: Changes over each run, by its name.
        summary: The main figures: the name of each row, and a cell per run.
        note: A sentence on streams that not every run has, and on those drawn as one; may be empty.
        plots: The plots that have panels.
    """

    names: list[str]
    runs: list[Run]
    findings: list[Finding]
    changes: dict[str, str]
    summary: list[tuple[str, Sequence[str]]]
    note: str
    plots: list[Plot]

    def tables(self) -> dict[str, pd.DataFrame]:
        """Gives the contents as tables.

        Returns:
            By name: `summary` (a row per figure, a column per run) and, for runs of trainers, `findings` (run, kind,
            streams, text) and `by_stream` (a row per run and stream; see `stream_figures`).
        """
        summary = pd.DataFrame([[name, *cells] for name, cells in self.summary], columns=["figure", *self.names])
        if not self.runs:
            return {"summary": summary}
        found = [(one.run, one.kind, ", ".join(one.streams), one.text) for one in self.findings]
        return {
            "summary": summary,
            "findings": pd.DataFrame(found, columns=["run", "kind", "streams", "text"]),
            "by_stream": pd.concat([stream_figures(run).assign(run=run.name) for run in self.runs]),
        }

    def as_data(self) -> dict[str, Any]:
        """Gives the contents as plain data.

        Returns:
            `summary` and `changes` by run, `findings` (a list of run, kind, streams and text), `streams` (see
            `stream_figures`) and `note`.
        """
        return {
            "summary": {
                run: {name: cells[place] for name, cells in self.summary} for place, run in enumerate(self.names)
            },
            "changes": self.changes,
            "findings": [vars(one) for one in self.findings],
            "streams": {run.name: stream_figures(run) for run in self.runs},
            "note": self.note,
        }


def read_report(folders: Sequence[str | Path]) -> Report:
    """Reads finished or running runs.

    Args:
        folders: Output folders of trainers, at least one.

    Raises:
        ValueError: If a folder appears twice or holds no run with a step, or the runs are of different kinds.
    """
    paths = [Path(folder) for folder in folders]
    if (kind := kind_of(paths)) is not None:
        names, rows, shown, note = kind.contents(paths)
        return Report(list(names), [], [], {}, list(rows), note, list(shown))
    runs = read_runs(paths)
    findings = findings_of(runs)
    main = main_streams(runs, [name for one in findings for name in one.streams])
    drawn = [grouped(run, main) for run in runs]
    plots = [plot(drawn, points_per_line(drawn)) for plot in PLOTS]
    return Report(
        [run.name for run in runs],
        runs,
        findings,
        {run.name: changed(run) for run in runs},
        list(summary_rows(runs)),
        " ".join(text for text in (differing_streams(runs), _drawn_as_one(runs, main)) if text),
        [plot for plot in plots if plot.panels],
    )


def points_per_line(runs: Sequence[Run]) -> int:
    """Gives the greatest number of points per line that keeps the page small."""
    num_lines = sum(_LINES_PER_RUN + _LINES_PER_STREAM * len(run.streams) for run in runs)
    num_lines += sum(_LINES_PER_STREAM_COMPARED * len(run.comparisons) for run in runs)
    num_lines += sum(_LINES_PER_STREAM_MEASURED * len(run.gradients) for run in runs)
    num_lines += sum(min(MOST_METRICS, rows["metric"].nunique()) for run in runs for rows in run.metrics.values())
    num_lines += sum(rows["source"].nunique() for run in runs for rows in run.memories.values())
    return max(_FEWEST_POINTS_PER_LINE, min(_MOST_POINTS_PER_LINE, _POINTS_PER_PAGE // num_lines))


def _drawn_as_one(runs: Sequence[Run], main: Sequence[str]) -> str:
    others = {name for run in runs for name in (*run.streams, *run.evaluations)} - set(main)
    if not others:
        return ""
    return (
        f"The plots show {len(main)} streams separately: those with findings and those with the largest share of the "
        f"samples in any run. The {len(others)} others are drawn as one; the tables list all streams."
    )
