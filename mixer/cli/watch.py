"""`mixer watch RUN`: a live view of a run on the terminal."""

import sys
import time
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.live import Live

from mixer.analysis.watch.gathered import WatchedRun
from mixer.analysis.watch.view import as_document, view
from mixer.cli.command import Command, add_json
from mixer.ledger.folder import newest_run, open_ledger
from mixer.ledger.ledger import Ledger
from mixer.utils.console import console, print_json

_ROWS_WITHOUT_TERMINAL = 200


def watch() -> Command:
    """Show a run while it trains."""
    parser = ArgumentParser(
        description="Shows a run on the terminal until it ends, or until Ctrl-C (status 130). If the output is not a "
        "terminal, the run is shown once."
    )
    parser.add_argument("run", type=str, help="Output folder of a run; for a continual run, the newest task is shown.")
    interval = "Seconds between updates of the view. Default: 2, as often as runs write."
    parser.add_argument("--interval_seconds", type=float, default=2.0, help=interval)
    parser.add_argument("--once", action="store_true", help="Show the run once and exit.")
    parser.add_argument("--wait", action="store_true", help="Wait for a run that has not started.")
    add_json(parser)
    return Command(parser, _watch, example="mixer watch runs/demo/adaptive")


def _watch(config: Namespace) -> None:
    if not config.interval_seconds > 0:
        raise ValueError(f"--interval_seconds must be above 0, got {config.interval_seconds}.")
    folder = newest_run(config.run)
    while config.wait and not _has_begun(folder):
        time.sleep(config.interval_seconds)
        folder = newest_run(config.run)
    open_ledger(folder)
    run = WatchedRun(folder)
    run.read()
    if sys.stdout.isatty() and not (config.json or config.once):
        _follow(run, config.interval_seconds)
    elif not run.gathered.clock:  # the tables are written one after the other
        raise ValueError(f"The ledger of {folder} has no complete step yet: try again in a few seconds, or use --wait.")
    elif config.json:
        print_json(as_document(run))
    else:
        _show_once(run)


def _has_begun(folder: Path) -> bool:
    return (folder / "ledger" / "ledger.json").is_file() and len(Ledger(folder / "ledger").clock()) > 0


def _follow(run: WatchedRun, interval_seconds: float) -> None:
    shown = console()
    with Live(console=shown, auto_refresh=False, screen=True) as live:
        while run.state == "running":
            if run.gathered.clock:  # empty for a moment when a run restarts
                live.update(view(run, shown.width, shown.height), refresh=True)
            time.sleep(interval_seconds)
            run.read()
    _show_once(run)


def _show_once(run: WatchedRun) -> None:
    shown = console()
    shown.print(view(run, shown.width, shown.height - 1 if sys.stdout.isatty() else _ROWS_WITHOUT_TERMINAL))
