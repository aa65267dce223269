"""`mixer watch RUN`: a view of a run on the terminal."""

import sys
import time

from jsonargparse import ArgumentParser, Namespace
from rich.live import Live

from mixer.ledger.folder import newest_run
from mixer.tools.analysis.watch.gathered import WatchedRun
from mixer.tools.analysis.watch.view import as_document, view
from mixer.tools.cli.command import Command, add_json
from mixer.tools.console import console, print_json

_INTERVAL_SECONDS = 2.0  # as often as runs write
_ROWS_WITHOUT_TERMINAL = 200


def watch() -> Command:
    """Show a run while it trains."""
    parser = ArgumentParser(
        description="Shows a run on the terminal until it ends, or until Ctrl-C (status 130). If the output is not a "
        "terminal, the run is shown once."
    )
    parser.add_argument("run", type=str, help="Output folder of a run; for a continual run, the newest task is shown.")
    parser.add_argument("--once", action="store_true", help="Show the run once and exit.")
    add_json(parser)
    return Command(parser, _watch, example="mixer watch runs/demo/adaptive")


def _watch(config: Namespace) -> None:
    run, shown, is_terminal = WatchedRun(newest_run(config.run)), console(), sys.stdout.isatty()
    run.read()
    if config.json:
        print_json(as_document(run))
        return
    if is_terminal and not config.once and run.state == "running":
        with Live(console=shown, auto_refresh=False, screen=True) as live:
            while run.state == "running":
                live.update(view(run, shown.width, shown.height), refresh=True)
                time.sleep(_INTERVAL_SECONDS)
                run.read()
    shown.print(view(run, shown.width, shown.height - 1 if is_terminal else _ROWS_WITHOUT_TERMINAL))
