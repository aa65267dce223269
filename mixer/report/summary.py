"""The table at the head of the page: the main figures of each run."""

from collections.abc import Callable, Sequence

import numpy as np

from mixer.report.run import Run, stream_names
from mixer.report.words import duration, listed


def summary_rows(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Gives the table's rows.

    Args:
        runs: The runs.

    Returns:
        Each row's name and a cell for each run.
    """
    return [(name, [cell(run) for run in runs]) for name, cell in _ROWS.items()]


def differing_streams(runs: Sequence[Run]) -> str:
    """Says which streams only some of the runs have.

    Args:
        runs: The runs.

    Returns:
        A sentence; empty if all runs have the same streams.
    """
    parts = []
    for name in stream_names(runs):
        having = [run.name for run in runs if name in run.streams]
        if len(having) < len(runs):
            parts.append(f"{name} only in {listed(having)}")
    return f"Not every run has every stream: {'; '.join(parts)}." if parts else ""


def _batch_size(run: Run) -> str:
    sizes = run.clock["batch_size"]
    return f"{sizes.iloc[0]:,} → {sizes.iloc[-1]:,} (min {sizes.min():,}, max {sizes.max():,})"


def _learning_rate(run: Run) -> str:
    rates = run.clock["learning_rate"].dropna()
    return "not known" if rates.empty else f"{rates.max():.3g} → {rates.iloc[-1]:.3g}"


def _validation(reduce: Callable[[list[float]], float]) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        last = [float(rows["loss"].iloc[-1]) for rows in run.evaluations.values()]
        return f"{reduce(last):.3f}" if last else "no evaluation"

    return cell


_ROWS: dict[str, Callable[[Run], str]] = {
    "Done of the budget": lambda run: f"{run.clock['progress'].iloc[-1]:.0%}",
    "Updates": lambda run: f"{run.clock['step'].iloc[-1]:,}",
    "Samples": lambda run: f"{run.clock['samples'].iloc[-1]:,}",
    "Tokens": lambda run: f"{run.clock['tokens'].iloc[-1]:,}",
    "Epochs": lambda run: f"{run.clock['epoch'].iloc[-1]:.2f}",
    "Batch size, first → last": _batch_size,
    "Learning rate, peak → last": _learning_rate,
    "Validation loss, last, average": _validation(lambda losses: float(np.mean(losses))),
    "Validation loss, last, worst": _validation(max),
    "Time in loading": lambda run: duration(run.load_seconds),
    "Time in training": lambda run: duration(run.train_seconds),
}
