"""From runs, or from a table and plots, to one page that needs nothing else."""

import base64
import gzip
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from mixer.report.plot import NUM_COLOURS, Plot
from mixer.report.plots import PLOTS
from mixer.report.run import Run, read_runs
from mixer.report.summary import differing_streams, summary_rows

# A point takes about 21 bytes of the page, so that all of them stay below 3 MB however many lines there are.
_POINTS_PER_PAGE = 120_000
_MOST_POINTS_PER_LINE, _FEWEST_POINTS_PER_LINE = 2_000, 20
_LINES_PER_RUN, _LINES_PER_STREAM = 3, 6
_LINES_PER_STREAM_COMPARED = 4
_LINES_PER_RUN_MEASURED, _LINES_PER_STREAM_MEASURED = 2 * NUM_COLOURS, 4


def write_report(folders: Sequence[str | Path], output: str | Path | None = None) -> Path:
    """Writes the page about runs, finished or going.

    Args:
        folders: Output folders of trainers, at least one.
        output: Where the page goes; `None` puts `report.html` into the first folder.

    Returns:
        Path of the page.

    Raises:
        ValueError: If a folder holds no run with an update, or the output is a folder.
    """
    paths = [Path(folder) for folder in folders]
    target = paths[0] / "report.html" if output is None else Path(output)
    runs = read_runs(paths)
    if target.is_dir():
        raise ValueError(f"output must be a file, but {target} is a folder: give {target / 'report.html'}, say.")
    plots = [plot(runs, points_per_line(runs)) for plot in PLOTS]
    shown = [plot for plot in plots if plot.panels]
    return write_page(target, [run.name for run in runs], summary_rows(runs), shown, differing_streams(runs))


def points_per_line(runs: Sequence[Run]) -> int:
    """Shares the page's points out over its lines.

    Args:
        runs: The runs.

    Returns:
        Greatest number of points a line.
    """
    num_lines = sum(_LINES_PER_RUN + _LINES_PER_STREAM * len(run.streams) for run in runs)
    num_lines += sum(_LINES_PER_STREAM_COMPARED * len(run.comparisons) for run in runs)
    num_lines += sum(
        _LINES_PER_RUN_MEASURED + _LINES_PER_STREAM_MEASURED * len(run.gradients) for run in runs if run.gradients
    )
    return max(_FEWEST_POINTS_PER_LINE, min(_MOST_POINTS_PER_LINE, _POINTS_PER_PAGE // num_lines))


def write_page(
    target: Path,
    names: Sequence[str],
    rows: Sequence[tuple[str, Sequence[str]]],
    plots: Sequence[Plot],
    note: str = "",
) -> Path:
    """Writes a page with a table and plots that can be opened without a network or any other file.

    Args:
        target: Where the page goes; folders that are not there are made.
        names: What is compared: the page's title and the heads of the table's columns.
        rows: The table: the name of each row, and its cells, one a column.
        plots: The plots.
        note: A sentence below the table.

    Returns:
        Path of the page.
    """
    page = _render(names, rows, plots, note)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")  # so that a page that is open is never half of one
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(target)
    return target


def _render(names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], plots: Sequence[Plot], note: str) -> str:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    figures = ",\n".join(panel.figure.to_json() for plot in plots for panel in plot.panels)
    return templates.get_template("template.html").render(
        names=names,
        rows=rows,
        note=note,
        plots=plots,
        figures=f"[{figures}]".replace("<", "\\u003c"),  # a stream may be called </script>
        # Packed it is a third as long; the page unpacks it.
        plotly=base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode(),
    )
