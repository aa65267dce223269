"""Writes the page, which needs no other file and no network."""

import base64
import functools
import gzip
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from mixer.tools.console import cells_of
from mixer.tools.report.comparing import shown_comparison, shown_differences
from mixer.tools.report.contents import read_report
from mixer.tools.report.run_kinds import Report
from mixer.tools.report.tables import shown_figures
from mixer.tools.report.values import read_values, shown_values
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import new_file

_MARK = "adaptive-mixer report"  # of the page's generator
_LONGEST_HEAD = 2_000


def write_report(folders: Sequence[str | Path], output: str | Path | None = None) -> Path:
    """Writes the page about finished or running runs.

    Args:
        folders: Output folders of trainers, at least one, or of runs of another kind; see
            `mixer.tools.report.run_kinds`.
        output: Path of the page; `None` for `report.html` in the current folder.

    Returns:
        Path of the page.

    Raises:
        ValueError: If a folder holds no run with a step, the runs are of different kinds, or the output is a folder or
            a file that is no report.
    """
    return write_page(page_path(output), read_report(folders))


def page_path(output: str | Path | None) -> Path:
    """Gives the path of the page; see `write_report`.

    Raises:
        ValueError: If it is a folder, or a file that is no report.
    """
    target = Path("report.html" if output is None else output)
    if target.is_dir():
        raise InvalidValueError(option="output", expected="the path of a file", found=str(target))
    if target.exists() and _MARK.encode() not in target.read_bytes()[:_LONGEST_HEAD]:
        expected = "a path without a file, or that of an earlier report"
        raise InvalidValueError(option="output", expected=expected, found=f"{target}, which is no report")
    return target


def write_page(target: Path, report: Report) -> Path:
    """Writes a report as a page.

    Args:
        target: Path of the page. Missing folders are made.
        report: The report.

    Returns:
        Path of the page.
    """
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    plots = [*report.first_plots, *report.plots]
    figures = ",\n".join(panel.figure.to_json() for plot in plots for panel in plot.panels)
    answer, names = report.answer, list(report.answer.best_first or report.names)
    base = "" if answer.differences.empty else str(answer.differences["run"].iloc[0])
    order = [report.names.index(name) for name in names]
    page = templates.get_template("template.html").render(
        report=report,
        mark=_MARK,
        comparison=cells_of(shown_comparison(answer.comparison, base)),
        base=base,
        differences=cells_of(shown_differences(answer.differences, [*answer.comparison.get("run", ())])),
        summary=(["Run", *names], [[name, *(cells[place] for place in order)] for name, cells in report.summary]),
        tables={run.name: cells_of(shown_figures(run)) for run in report.runs},
        values={
            run.name: (found[0], cells_of(shown_values(found[1])))
            for run in report.runs
            if (found := read_values(run.folder))
        },
        figures=f"[{figures}]".replace("<", "\\u003c"),  # a stream may be called </script>
        plotly=_packed_plotly(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")  # so that a page that is open is never half of one
    with new_file(temporary) as file:
        file.write(page.encode())
    temporary.replace(target)
    return target


@functools.cache
def _packed_plotly() -> str:
    """Compresses Plotly to a third; the page unpacks it."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
