"""`mixer compare RUN ...`: a table of runs side by side."""

from jsonargparse import Namespace
from rich.console import Group

from mixer.tools.cli.command import Command, add_json, parser_of_runs
from mixer.tools.console import show
from mixer.tools.records.comparison import comparison
from mixer.tools.records.forks import forks_in_words, paired_differences
from mixer.tools.records.run import Run


def compare() -> Command:
    """Compare runs side by side."""
    parser = parser_of_runs("Compares runs side by side, finished or not.")
    add_json(parser)
    example = "mixer compare runs/demo/adaptive runs/demo/uniform"
    return Command(parser, _compare, example=example)


def _compare(config: Namespace) -> None:
    runs = [Run(folder) for folder in config.runs]
    forks = paired_differences(config.runs)
    by_run = {row["run"]: {"fork": row} for row in forks}
    content = [
        {"run": folder, **run.as_data(), **by_run.get(str(run.folder), {})}
        for folder, run in zip(config.runs, runs, strict=True)
    ]
    show(lambda: content, lambda: Group(comparison(runs), forks_in_words(forks)), config.json)
