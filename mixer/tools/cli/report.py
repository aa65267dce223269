"""The command `mixer report RUN ...`: a page about runs."""

from jsonargparse import Namespace

from mixer.tools.cli.command import Command, add_json, parser_of_runs
from mixer.tools.console import print_json
from mixer.utils.text import print_lines


def report() -> Command:
    """Write a page with plots of runs."""
    parser = parser_of_runs("Writes one page on finished or running runs: findings, tables and plots.")
    parser.add_argument(
        "--output", type=str, metavar="PATH", help="Path of the page. Default: report.html in the current folder."
    )
    add_json(parser)
    example = "mixer report runs/demo/adaptive runs/demo/uniform"
    return Command(parser, _report, example=example)


def _report(config: Namespace) -> None:
    try:
        from mixer.tools.report.contents import read_report  # its libraries belong to an extra
        from mixer.tools.report.page import page_path, write_page
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("plotly", "jinja2"):
            raise
        raise ValueError(
            f"the page needs {error.name}, which is not installed: pip install 'adaptive-mixer[report]'."
        ) from None
    target = page_path(config.output)
    report = read_report(config.runs)
    page = write_page(target, report)
    if config.json:
        print_json({"page": page, **report.as_data()})
    else:
        print_lines(page)
