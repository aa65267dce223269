"""The command `mixer report RUN ...`: a page about runs, and its pictures and tables as files."""

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.cli.command import Command, add_json
from mixer.ledger.folder import open_ledger
from mixer.utils.console import print_json
from mixer.utils.text import print_lines


def report() -> Command:
    """Write a page with plots of runs."""
    parser = ArgumentParser(description="Writes one page on finished or running runs: findings, tables and plots.")
    add = parser.add_argument
    add("runs", nargs="+", type=str, help="Output folders of runs.")
    add("--output", type=str, metavar="PATH", help="Path of the page. Default: report.html of the first.")
    add("--pictures", type=str, metavar="FOLDER", help="Write each plot as a picture into this folder, too.")
    add("--picture_format", type=str, default="png", metavar="{png,svg,pdf}", help="Default: png.")
    add("--tables", type=str, metavar="FOLDER", help="Write each table as a file into this folder, too.")
    add("--table_format", type=str, default="csv", metavar="{csv,parquet}", help="Default: csv.")
    add_json(parser)
    example = "mixer report runs/demo/adaptive runs/demo/uniform"
    return Command(parser, _report, example=example)


def _report(config: Namespace) -> None:
    try:
        from mixer.report.contents import read_report  # its libraries belong to an extra
        from mixer.report.page import page_path, write_page
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("plotly", "jinja2"):
            raise
        raise ValueError(
            f"the page needs {error.name}, which is not installed: pip install 'adaptive-mixer[report]'."
        ) from None
    from mixer.report.pictures import check_pictures, write_pictures
    from mixer.report.tables import check_tables, write_tables

    check_tables(config.table_format)
    if config.pictures is not None:
        check_pictures(config.picture_format)
    target = page_path(config.runs, config.output)
    report = read_report(config.runs)
    written: dict[str, Any] = {"page": write_page(target, report), "pictures": [], "tables": []}
    if config.pictures is not None:
        written["pictures"] = write_pictures(report.plots, config.pictures, config.picture_format)
    if config.tables is not None:
        ledgers = {run.name: open_ledger(folder) for run, folder in zip(report.runs, config.runs, strict=False)}
        written["tables"] = write_tables(ledgers, report.tables(), config.tables, config.table_format)
    if config.json:
        print_json({**written, **report.as_data()})
    else:
        print_lines(written["page"], *written["pictures"], *written["tables"])
