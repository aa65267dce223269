"""From runs, or from a table and plots, to one page that needs nothing else."""

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
    """What is said of a run at the head of the page.

    Args:
        run: Its name.
        findings: What is conspicuous.
        changed: A sentence on what changed.
    """

    run: str
    findings: Sequence[Finding]
    changed: str


@dataclass(frozen=True)
class Table:
    """A table at the foot of the page.

    Args:
        title: What it shows.
        heads: Heads of the columns.
        rows: The cells, the first of each row naming it.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def is_open(self) -> bool:
        """Whether it is shown without being asked for."""
        return len(self.rows) <= _MOST_ROWS_OPEN


def write_report(folders: Sequence[str | Path], output: str | Path | None = None) -> Path:
    """Writes the page about runs, finished or going.

    Args:
        folders: Output folders of trainers, at least one, or of runs of another kind, see
            `mixer.analysis.report.kinds`.
        output: Where the page goes; `None` puts `report.html` into the first folder.

    Returns:
        Path of the page.

    Raises:
        ValueError: If a folder holds no run with a step, they are of different kinds, or the output is a folder.
    """
    return write_contents(read_report(folders), page_path(folders, output))


def page_path(folders: Sequence[str | Path], output: str | Path | None) -> Path:
    """Says where the page goes.

    Args:
        folders: See `write_report`.
        output: See `write_report`.

    Returns:
        The path.

    Raises:
        ValueError: If it is a folder.
    """
    target = Path(folders[0]) / "report.html" if output is None else Path(output)
    if target.is_dir():
        raise ValueError(f"output must be a file, but {target} is a folder: give {target / 'report.html'}, say.")
    return target


def write_contents(report: Report, target: Path) -> Path:
    """Writes a report as a page.

    Args:
        report: The report.
        target: Where the page goes.

    Returns:
        Path of the page.
    """
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
    """Writes a page with a table and plots that can be opened without a network or any other file.

    Args:
        target: Where the page goes; folders that are not there are made.
        names: What is compared: the page's title and the heads of the table's columns.
        rows: The table: the name of each row, and its cells, one a column.
        plots: The plots.
        note: A sentence below the table.
        remarks: What comes before everything else.
        tables: What comes after everything else.

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
    """Packed it is a third as long; the page unpacks it."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
