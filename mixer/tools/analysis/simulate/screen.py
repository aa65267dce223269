"""A planned run as tables."""

import math

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from mixer.tools.analysis.simulate.simulated import Simulated
from mixer.utils.arrays import Int64Array

_MOST_SIZES = 3  # of steps, to be counted one by one


def screen(simulated: Simulated, every: float) -> RenderableType:
    """Lays a planned run out.

    Args:
        simulated: The run.
        every: Share of the run that a row of the mixture has.

    Returns:
        The run, its streams, the mixture over the run, the source of the losses, and warnings.
    """
    parts: list[RenderableType] = [_run(simulated), _streams(simulated), _mixture(simulated, every)]
    parts.append(Text(simulated.source))
    parts += [Text(f"! {warning}", style="yellow") for warning in simulated.warnings]
    return Group(*parts)


def _run(simulated: Simulated) -> Table:
    labels = ["labels"] if simulated.labels else []
    table = Table("steps", "samples", "tokens", *labels, "epochs", "batch size", "learning rate", title="The run")
    sizes, rates = simulated.batch_sizes, simulated.learning_rates
    table.add_row(
        f"{simulated.steps:,}",
        f"{simulated.samples:,}",
        f"{'~' if simulated.estimated_tokens else ''}{simulated.tokens:,}",
        *([f"{simulated.labels:,}"] if labels else []),
        f"{simulated.epochs:.3f}",
        f"{sizes[0]} → {sizes[-1]} ({_steps(simulated.counts.sum(axis=1))})",
        f"{rates[0]:.3g} → {rates[-1]:.3g} (to {rates.max():.3g}, scheduled over {simulated.planned_steps:,} steps)",
    )
    return table


def _steps(totals: Int64Array) -> str:
    """Says how many samples steps really have: the rest of an epoch is less than a batch."""
    sizes, numbers = np.unique(totals, return_counts=True)
    if len(sizes) == 1:
        return f"{sizes[0]} in each step"
    if len(sizes) > _MOST_SIZES:
        return f"{sizes[0]} to {sizes[-1]} in a step"
    return ", ".join(f"{number:,} of {size}" for size, number in zip(sizes, numbers, strict=True))


def _streams(simulated: Simulated) -> Table:
    labels = ["labels", "share"] if simulated.labels else []
    amounts = ("samples", "share", "of", "coverage", "passes", "tokens", "share", *labels)
    table = _table("Streams", "stream", *amounts, "first", "last")
    table.columns[0].justify = "left"
    for stream in simulated.streams:
        table.add_row(
            stream.name,
            f"{stream.samples:,}",
            f"{stream.share:.1%}",
            f"{stream.num_samples:,}" if stream.num_samples else "-",
            "-" if math.isnan(stream.coverage) else f"{stream.coverage:.1%}",
            "-" if math.isnan(stream.passes) else f"{stream.passes:.2f}",
            f"{'~' if stream.name in simulated.estimated_tokens else ''}{stream.tokens:,}",
            f"{stream.token_share:.1%}",
            *([f"{stream.labels:,}", f"{stream.label_share:.1%}"] if labels else []),
            _place(stream.first_step, stream.first_progress),
            _place(stream.last_step, stream.last_progress) + (", runs out" if stream.runs_out else ""),
        )
    return table


def _place(step: int, progress: float) -> str:
    return "-" if not step else f"{step:,} ({progress:.0%})"


def _mixture(simulated: Simulated, every: float) -> Table:
    names = [stream.name for stream in simulated.streams]
    table = _table("Realised mixture, by parts of the run", "to step", "progress", "mean step", *names)
    for step, progress, shares, size in simulated.mixture(every):
        table.add_row(f"{step:,}", f"{progress:.1%}", f"{size:.1f}", *(f"{share:.3f}" for share in shares))
    return table


def _table(title: str, *columns: str) -> Table:
    return Table(*(Column(name, justify="right") for name in columns), title=title)
