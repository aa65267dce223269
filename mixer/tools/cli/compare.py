"""`mixer compare RUN ...`: a table of runs side by side."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Group

from mixer.tools.cli.command import Command, add_json
from mixer.tools.console import show
from mixer.tools.records.comparison import comparison
from mixer.tools.records.forks import forks_in_words, paired_differences
from mixer.tools.records.summary import summarise


def compare() -> Command:
    """Compare runs side by side."""
    parser = ArgumentParser(description="Compares runs side by side, finished or not.")
    parser.add_argument("runs", nargs="+", type=str, help="Output folders of runs.")
    add_json(parser)
    example = "mixer compare runs/demo/adaptive runs/demo/uniform"
    return Command(parser, _compare, example=example)


def _compare(config: Namespace) -> None:
    summaries = [summarise(Path(run)) for run in config.runs]
    forks = paired_differences(config.runs)
    by_run = {row["run"]: {"fork": row} for row in forks}
    content = [
        {"run": run, **summary.as_data(), **by_run.get(str(Path(run)), {})}
        for run, summary in zip(config.runs, summaries, strict=True)
    ]
    show(lambda: content, lambda: Group(comparison(summaries), forks_in_words(forks)), config.json)
