"""`mixer compare RUN ...`: a table of runs side by side."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from mixer.cli.command import Command, add_json
from mixer.ledger.summary import comparison, summarise
from mixer.utils.console import show


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
    show(lambda: content, lambda: comparison(summaries), config.json)
