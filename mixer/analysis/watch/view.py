"""The terminal view of a run: as many lines and columns as there is room for."""

import math

from rich.console import Group, RenderableType
from rich.text import Text

from mixer.analysis.watch.curve import sparkline
from mixer.analysis.watch.stream_table import CURVE_WIDTH, bar_text, loss_text, number_text, stream_table
from mixer.analysis.watch.watched_run import WatchedRun
from mixer.ledger.evaluated_losses import mean_loss
from mixer.utils.clock_text import clock_text, duration_text, short_number

_SILENCE_SECONDS = 30.0
_STATE_STYLES = {"running": "green", "finished": "bold green", "stopped": "bold red"}


def view(run: WatchedRun, columns: int, rows: int) -> RenderableType:
    """Draws a run.

    Args:
        run: The run, read.
        columns: Width of the terminal.
        rows: Its height.

    Returns:
        Lines that take no more room than there is: with few rows the streams of the greatest weight stand for all, with
        very few no stream is shown.
    """
    lines = _lines(run, columns)[: max(1, rows)]
    left = rows - len(lines)
    return Group(*lines, *([stream_table(run.gathered, columns, left)] if left >= 2 else []))


def _lines(run: WatchedRun, columns: int) -> list[Text]:
    """Writes what is true of the whole run, a line each."""
    lines = [_title(run), _progress(run, columns), Text(", ".join(_times(run))), Text(", ").join(_figures(run))]
    losses = run.gathered.evaluations
    if losses:
        # No number is worse than any.
        worst = max(losses, key=lambda name: (math.isnan(losses[name]), losses[name]))
        mean = mean_loss(losses, run.eval_weights)
        at = f"evaluation at {run.gathered.evaluated_at:,}"
        lines.append(Text(f"{at}: mean {mean:.3f}, worst {worst} {losses[worst]:.3f}"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _title(run: WatchedRun) -> Text:
    state, silent = run.state, run.seconds_silent()
    line = Text(state if run.reason is None else f"{state} ({run.reason.splitlines()[0]})", style=_STATE_STYLES[state])
    if state == "running" and silent > _SILENCE_SECONDS:
        line.append(f", silent for {duration_text(silent)}", style="yellow")
    line.append(f"  {run.note.get('policy', '')}", style="not bold default")
    line.append(f"  {run.folder.resolve().name}", style="bold default")
    return line


def _progress(run: WatchedRun, columns: int) -> Text:
    clock = run.gathered.clock
    done = {"epochs": clock["epoch"], "steps": clock["step"], **{unit: clock[unit] for unit in ("samples", "tokens")}}
    share = f" {run.progress:4.0%}  {clock_text(done, run.budget)}"
    width = max(10, min(40, columns - len(share) - 1))
    return Text(bar_text(run.progress, width), style="cyan").append(share, style="bold")


def _times(run: WatchedRun) -> list[str]:
    clock = run.gathered.clock
    return [
        *([f"{duration_text(run.seconds_left())} left"] if run.state == "running" else []),
        f"step {clock['step']:,}",
        f"epoch {clock['epoch']:.2f}",
        f"{short_number(clock['samples'])} samples",
        f"{short_number(clock['tokens'])} tokens",
        f"{number_text(run.gathered.seconds_per_step, '.2g')} s/step",
    ]


def _figures(run: WatchedRun) -> list[Text]:
    clock, is_finite = run.gathered.clock, run.gathered.is_finite
    loss, norm = (loss_text(clock[name], is_finite[name]) for name in ("loss", "gradient_norm"))
    return [
        Text.assemble("loss ", loss, f" {sparkline(run.gathered.losses.points, CURVE_WIDTH)}"),
        Text(f"batch {clock['batch_size']:,}"),
        Text(f"rate {number_text(clock['learning_rate'], '.2e')}"),
        Text(f"loading {number_text(run.gathered.loading_share, '.0%')}"),
        Text.assemble("gradient ", norm),
    ]
