"""Writes the page, which needs no other file and no network."""

import base64
import functools
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from mixer.analysis.report.contents import Report, read_report
from mixer.analysis.report.findings import Finding
from mixer.analysis.report.plot import Plot
from mixer.analysis.report.tables import stream_cells

_MOST_ROWS_OPEN = 12  # a longer table is folded


@dataclass(frozen=True)
class Remarks:
    """Remarks on a run at the top of the page.

    Args:
        run: Name of the run.
        findings: Its findings.
        changed: A sentence on its changes.
    """

    run: str
    findings: Sequence[Finding]
    changed: str


@dataclass(frozen=True)
class Table:
    """A table at the foot of the page.

    Args:
        title: Its title.
        heads: Heads of the columns.
        rows: The cells; the first of each row is its name.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def is_open(self) -> bool:
        """Whether it is unfolded at first."""
        return len(self.rows) <= _MOST_ROWS_OPEN


def write_report(folders: Sequence[str | Path], output: str | Path | None = None) -> Path:
    """Writes the page about finished or running runs.

    Args:
        folders: Output folders of trainers, at least one, or of runs of another kind; see
            `mixer.analysis.report.kinds`.
        output: Path of the page; `None` for `report.html` in the first folder.

    Returns:
        Path of the page.

    Raises:
        ValueError: If a folder holds no run with a step, the runs are of different kinds, or the output is a folder.
    """
    return write_contents(read_report(folders), page_path(folders, output))


def page_path(folders: Sequence[str | Path], output: str | Path | None) -> Path:
    """Gives the path of the page; see `write_report`.

    Raises:
        ValueError: If it is a folder.
    """
    target = Path(folders[0]) / "report.html" if output is None else Path(output)
    if target.is_dir():
        raise ValueError(f"output must be a file, but {target} is a folder: give {target / 'report.html'}, say.")
    return target


def write_contents(report: Report, target: Path) -> Path:
    """Writes a report as a page and returns its path."""
    remarks = [
        Remarks(name, [one for one in report.findings if one.run == name], changed)
        for name, changed in report.changes.items()
    ]
    tables = [Table(f"All streams of {run.name}", *stream_cells(run)) for run in report.runs]
    return write_page(target, report.names, report.summary, report.plots, report.note, remarks, tables)


def write_page(
    target: Path,
    names: Sequence[str],
    rows: Sequence[tuple[str, Sequence[str]]],
    plots: Sequence[Plot],
    note: str = "",
    remarks: Sequence[Remarks] = (),
    tables: Sequence[Table] = (),
) -> Path:
    """Writes a page with a table and plots.

    Args:
        target: Path of the page. Missing folders are made.
        names: Names of the runs: the page's title and the heads of the table's columns.
        rows: The table: the name of each row, and its cells, one per column.
        plots: The plots.
        note: A sentence below the table.
        remarks: Remarks above the table.
        tables: Tables below the plots.

    Returns:
        Path of the page.
    """
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    figures = ",\n".join(panel.figure.to_json() for plot in plots for panel in plot.panels)
    page = templates.get_template("template.html").render(
        names=names,
        rows=rows,
        note=note,
        remarks=remarks,
        tables=tables,
        plots=plots,
        figures=f"[{figures}]".replace("<", "\\u003c"),  # a stream may be called </script>
        plotly=_packed_plotly(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")  # so that a page that is open is never half of one
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(target)
    return target


@functools.cache
def _packed_plotly() -> str:
    """Compresses Plotly to a third; the page unpacks it."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
