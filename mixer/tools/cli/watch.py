"""`mixer watch RUN`: where a run is, and its streams."""

import math
import time
from typing import Any

from jsonargparse import Namespace
from rich.console import Group, RenderableType
from rich.text import Text

from mixer.checkpoint.lock import FolderLock
from mixer.ledger.folder import last_written, newest_run
from mixer.tools.cli.command import Command, add_json, parser_of_run
from mixer.tools.console import show
from mixer.tools.records.comparison import comparison
from mixer.tools.records.run import Run
from mixer.utils.text import duration, short_number


def watch() -> Command:
    """Show the progress of a run."""
    parser = parser_of_run(
        "Shows once how far a run is: steps, time left, the last record, losses and streams. `watch -n 10 "
        "mixer watch RUN` shows it every ten seconds; mixer report RUN makes a page of it, also while it trains.",
        "Output folder of a run; of several in it, the newest is shown.",
    )
    add_json(parser)
    return Command(parser, _watch, example="mixer watch runs/demo/adaptive")


def _watch(config: Namespace) -> None:
    run = Run(newest_run(config.run))
    place = place_of(run)
    show(lambda: {"run": run.folder, **place, **run.as_data()}, lambda: _view(place, run), config.json)


def place_of(run: Run) -> dict[str, Any]:
    """Reads where a run is.

    Args:
        run: The run.

    Returns:
        state (`"running"`, `"finished"`, `"stopped"`, or `"killed"` if it ended without a word); reason (the signal or
        error that stopped it, else `None`); seconds_left (by the time since it began, or resumed; `None` if unknown);
        seconds_silent (since its last record); clock (the newest row).

    Raises:
        ValueError: If it has no step yet.
    """
    note, clock = run.note, run.clock
    if clock.empty:  # the tables are written one after the other
        raise ValueError(f"The ledger of {run.folder} has no complete step yet: try again in a few seconds.")
    ended, resumed, written = note.get("ended"), note.get("resumed_after"), last_written(run.folder)
    is_running = ended not in ("finished", "stopped")
    if is_running:
        ended = "killed" if FolderLock(run.folder).was_left() else "running"
        is_running = ended == "running"
    before = clock["progress"][clock["step"] <= (resumed if isinstance(resumed, int) else 0)].max()
    progress = float(clock["progress"].iloc[-1])
    done = progress - (0.0 if math.isnan(before) else float(before))
    seconds = written - (run.folder / "ledger" / "ledger.json").stat().st_mtime
    return {
        "state": ended,
        "reason": note.get("reason"),
        "seconds_left": (1.0 - progress) * seconds / done if is_running and done > 0.0 and seconds > 0.0 else None,
        "seconds_silent": max(0.0, time.time() - written),
        "clock": clock.iloc[-1].to_dict(),
    }


def _view(place: dict[str, Any], run: Run) -> RenderableType:
    clock, left = place["clock"], place["seconds_left"]
    reason = "" if place["reason"] is None else f" ({place['reason']})"
    state = "ended without finishing, as after a kill" if place["state"] == "killed" else place["state"]
    lines = [
        f"{run.name}: {state}{reason}, {run.policy or 'unknown policy'}",
        f"{clock['progress']:.0%}, step {clock['step']:,.0f}, epoch {clock['epoch']:.2f}, "
        f"{short_number(clock['samples'])} samples" + ("" if left is None else f", {duration(left)} left"),
        f"loss {clock['loss']:.3f}, batch {clock['batch_size']:,.0f}, rate {clock['learning_rate']:.2e}, "
        f"gradient {clock['gradient_norm']:.3f}",
        f"last record {duration(place['seconds_silent'])} ago",
    ]
    return Group(*map(Text, lines), comparison([run]))
