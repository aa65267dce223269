"""`mixer compare RUN ...`: a table of runs side by side."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Group, RenderableType

from mixer.tools.cli.command import Command, add_json
from mixer.tools.console import show
from mixer.tools.records.comparison import comparison
from mixer.tools.records.forks import fork_table, paired_differences
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
    content = [{"run": run, **one.as_data()} for run, one in zip(config.runs, summaries, strict=True)]
    forks = paired_differences(config.runs)
    by_run = {row["run"]: {"fork": row} for row in forks}
    content = [{**row, **by_run.get(str(Path(str(row["run"]))), {})} for row in content]

    def view() -> RenderableType:
        return Group(comparison(summaries), fork_table(forks)) if forks else comparison(summaries)

    show(lambda: content, view, config.json)
