"""The table at the head of the page: the main figures of each run."""

from collections.abc import Callable, Sequence

from mixer.analysis.report.run import Run, stream_names
from mixer.ledger.evaluated_losses import mean_loss, worst_loss
from mixer.utils.words import duration, listed, rule_in_words, shortened


def summary_rows(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Gives the table's rows.

    Args:
        runs: The runs.

    Returns:
        Each row's name and a cell for each run.
    """
    rows = _ROWS if any(run.timings["probe_seconds"].any() for run in runs) else _ROWS_WITHOUT_MEASURING
    return [(name, [cell(run) for run in runs]) for name, cell in rows.items()]


def differing_streams(runs: Sequence[Run]) -> str:
    """Says which streams only some of the runs have.

    Args:
        runs: The runs.

    Returns:
        A sentence; empty if all runs have the same streams.
    """
    names_by_runs: dict[tuple[str, ...], list[str]] = {}
    for name in stream_names(runs):
        having = tuple(run.name for run in runs if name in run.streams)
        if len(having) < len(runs):
            names_by_runs.setdefault(having, []).append(name)
    parts = [f"{listed(shortened(names))} only in {listed(having)}" for having, names in names_by_runs.items()]
    return f"Not every run has every stream: {'; '.join(parts)}." if parts else ""


def _batch_size(run: Run) -> str:
    sizes = run.clock["batch_size"]
    if sizes.min() == sizes.max():
        return f"{sizes.iloc[0]:,}"
    ends = (sizes.iloc[0], sizes.iloc[-1])
    beyond = [f"{word} {size:,}" for word, size in (("min", sizes.min()), ("max", sizes.max())) if size not in ends]
    return f"{ends[0]:,} → {ends[1]:,}" + (f" ({', '.join(beyond)})" if beyond else "")


def _learning_rate(run: Run) -> str:
    rates = run.clock["learning_rate"].dropna()
    return "not known" if rates.empty else f"{rates.max():.3g} → {rates.iloc[-1]:.3g}"


def _validation(reduce: Callable[[Run, dict[str, float]], float]) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        last = {name: float(rows["loss"].iloc[-1]) for name, rows in run.evaluations.items()}
        return f"{reduce(run, last):.3f}" if last else "no evaluation"

    return cell


def _seconds(column: str) -> Callable[[Run], str]:
    return lambda run: duration(float(run.timings[column].sum()))


def _rule(field: str) -> Callable[[Run], str]:
    return lambda run: rule_in_words(run.description[field]) if field in run.description else "not known"


_MEASURING = "Time in measuring gradients"
_ROWS: dict[str, Callable[[Run], str]] = {
    "Policy": _rule("mixing"),
    "Done of the budget": lambda run: f"{run.clock['progress'].iloc[-1]:.0%}",
    "Ended": lambda run: run.ended,
    "Steps": lambda run: f"{run.clock['step'].iloc[-1]:,}",
    "Samples": lambda run: f"{run.clock['samples'].iloc[-1]:,}",
    "Tokens": lambda run: f"{run.clock['tokens'].iloc[-1]:,}",
    "Epochs": lambda run: f"{run.clock['epoch'].iloc[-1]:.2f}",
    "Batch size, first → last": _batch_size,
    "Learning rate, peak → last": _learning_rate,
    "Validation loss, last, average": _validation(lambda run, losses: mean_loss(losses, run.eval_weights)),
    "Validation loss, last, worst": _validation(lambda run, losses: worst_loss(losses)),
    "Time in loading": _seconds("load_seconds"),
    "Time in training": _seconds("train_seconds"),
    _MEASURING: _seconds("probe_seconds"),
}
_ROWS_WITHOUT_MEASURING = {name: cell for name, cell in _ROWS.items() if name != _MEASURING}
