"""Tables of a report: main figures and streams."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from mixer.tools.records.clock import Columns
from mixer.tools.records.run import Run
from mixer.tools.records.runs import stream_names
from mixer.tools.report.judging import shares_of
from mixer.tools.report.last_change import last_decision
from mixer.tools.report.plots.gradients import course_of
from mixer.tools.report.plots.losses import last_smoothed
from mixer.utils.text import duration, first_of, listed, shortened

_COLUMNS = (
    *("samples", "share", "token_share", "label_share", "first_weight", "last_weight", "coverage", "passes"),
    "cap",
    *("training_loss", "training_not_finite_since"),
    *("first_validation_loss", "last_validation_loss", "validation_not_finite_since"),
    *("gradient_norm", "gradient_noise_scale", "entries"),
    *("first_reward", "last_reward", "silent_groups", "completion_length", "kl"),
)
# Whole numbers, also where some are not known.
_COUNTS = ("samples", "entries", "training_not_finite_since", "validation_not_finite_since")


def stream_figures(run: Run) -> pd.DataFrame:
    """Gives the main figures of each stream.

    Args:
        run: The run.

    Returns:
        One row per stream or other evaluation set: stream, samples, share (of all samples), token_share or
        label_share (of all tokens or labels, if the policy mixes by them), first_weight,
        last_weight (in the policy's unit), coverage, passes, cap, training_loss (the last, smoothed),
        training_not_finite_since (a step),
        first_validation_loss, last_validation_loss, validation_not_finite_since, gradient_norm and
        gradient_noise_scale (the last, smoothed), entries (of a replay buffer), first_reward, last_reward,
        silent_groups, completion_length and kl (means over the first and the last tenth of rounds), and for each metric
        of evaluations first_validation_METRIC and last_validation_METRIC; NaN if unknown.
    """
    units: set[str] = {"samples", run.unit}
    shares = {unit: shares_of(run, unit if unit != "samples" else "count") for unit in units}
    names = dict.fromkeys([*run.streams, *run.evaluations, *run.metrics])
    metrics = {name: _of_metrics(rows) for name, rows in run.metrics.items()}
    rows = [
        {"stream": name, **_of_losses(run, name, shares), **_of_measurements(run, name), **metrics.get(name, {})}
        for name in names
    ]
    measured = dict.fromkeys(column for own in metrics.values() for column in own)
    return pd.DataFrame(rows, columns=["stream", *_COLUMNS, *measured]).astype(dict.fromkeys(_COUNTS, "Int64"))


def not_finite_since(rows: Columns) -> int | None:
    """Gives the step of the first loss after the last finite one.

    Args:
        rows: Columns of the steps of a stream (those without items have no loss), or of evaluations.

    Returns:
        The step; `None` if the last loss is finite, or there is none.
    """
    steps, finite = rows["step"], np.isfinite(rows["loss"].astype(np.float64, copy=False))
    if "items" in rows:
        has_items = rows["items"] > 0
        steps, finite = steps[has_items], finite[has_items]
    if not len(finite) or finite[-1]:
        return None
    return int(steps[int(finite.nonzero()[0].max(initial=-1)) + 1])


def shown_figures(run: Run) -> pd.DataFrame:
    """Leaves out the columns without any figure."""
    return stream_figures(run).dropna(axis="columns", how="all")


def _of_losses(run: Run, name: str, shares: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    if (rows := run.stream_columns.get(name)) is not None:
        samples, since = int(rows["count"].sum()), not_finite_since(rows)
        figures |= {"samples": samples, "share": shares["samples"][name], "cap": run.caps.get(name, np.nan)}
        weights = rows["weight" if run.unit == "samples" else "policy_weight"]
        figures |= {"first_weight": weights[0], "last_weight": weights[-1]}
        if run.unit != "samples":
            figures[f"{run.unit[:-1]}_share"] = shares[run.unit][name]
        figures |= {column: rows[column][-1] for column in ("coverage", "passes")}
        figures |= {"training_loss": last_smoothed(rows["loss"], rows["items"]) if since is None else np.nan}
        figures |= {"training_not_finite_since": since}
    if (rows := run.evaluation_columns.get(name)) is not None:
        losses = rows["loss"]
        figures |= {"first_validation_loss": losses[0], "last_validation_loss": losses[-1]}
        figures |= {"validation_not_finite_since": not_finite_since(rows)}
    return figures


def _of_measurements(run: Run, name: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    if name in run.gradients:
        smooth = course_of(run.gradients[name], "squared_norm", "variance")[1]
        figures |= {"gradient_norm": smooth["norm"].iloc[-1], "gradient_noise_scale": smooth["noise"].iloc[-1]}
    if name in run.memories:
        rows = run.memories[name]
        figures["entries"] = float(rows.loc[rows["step"] == rows["step"].max(), "entries"].sum())
    if name in run.rewards:
        rows = run.rewards[name]
        tenth = max(1, len(rows) // 10)
        last = rows.tail(tenth)[["reward", "silent", "mean_length", "kl"]].mean()
        figures |= {"first_reward": rows["reward"].head(tenth).mean(), "last_reward": last["reward"]}
        figures |= {"silent_groups": last["silent"], "completion_length": last["mean_length"], "kl": last["kl"]}
    return figures


def _of_metrics(rows: pd.DataFrame) -> dict[str, float]:
    figures: dict[str, float] = {}
    for metric, own in rows.groupby("metric", sort=False)["value"]:
        figures |= {f"first_validation_{metric}": own.iloc[0], f"last_validation_{metric}": own.iloc[-1]}
    return figures


def summary_rows(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Gives the name of each row of the summary that any run has a cell for, and a cell per run."""
    rows = [(name, [cell(run) for run in runs]) for name, cell in _ROWS.items()]
    return [(name, cells) for name, cells in rows if any(cells)]


def differing_streams(runs: Sequence[Run]) -> str:
    """Names the streams that only some of the runs have, in a sentence; empty if there are none."""
    names_by_runs: dict[tuple[str, ...], list[str]] = {}
    for name in stream_names(runs):
        having = tuple(run.name for run in runs if name in run.streams)
        if len(having) < len(runs):
            names_by_runs.setdefault(having, []).append(name)
    parts = [f"{listed(first_of(names))} only in {listed(having)}" for having, names in names_by_runs.items()]
    return f"Not every run has every stream: {'; '.join(parts)}." if parts else ""


def _ended(run: Run) -> str:
    if run.note.get("ended") == "finished":
        return "finished"
    if run.note.get("ended") != "stopped":
        return "not recorded: still running, or killed"
    return f"stopped: {shortened(str(run.note.get('reason', 'no recorded reason')))}"


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


def _seconds(column: str) -> Callable[[Run], str]:
    return lambda run: duration(float(run.timings[column].sum())) if run.timings[column].any() else ""


def _prefetched(run: Run) -> str:
    hits, misses = int(run.timings["hits"].sum()), int(run.timings["misses"].sum())
    return f"{hits / (hits + misses):.1%}" if hits + misses else ""


_ROWS: dict[str, Callable[[Run], str]] = {
    "Policy": lambda run: run.policy or "not known",
    "Budget used": lambda run: f"{run.clock['progress'].iloc[-1]:.0%}",
    "Ended": _ended,
    "Steps": lambda run: f"{run.clock['step'].iloc[-1]:,}",
    "Steps per recorded row": lambda run: f"{run.interval_steps:,}" if run.interval_steps > 1 else "",
    "Samples": lambda run: f"{run.clock['samples'].iloc[-1]:,}",
    "Tokens": lambda run: f"{run.clock['tokens'].iloc[-1]:,}",
    "Epochs": lambda run: f"{run.clock['epoch'].iloc[-1]:.2f}",
    "Last decision": last_decision,
    "Batch size, first → last": _batch_size,
    "Learning rate, peak → last": _learning_rate,
    "Validation loss, last, average": lambda run: f"{run.mean_loss():.3f}" if run.evaluations else "no evaluation",
    "Validation loss, last, worst": lambda run: f"{run.worst_loss():.3f}" if run.evaluations else "no evaluation",
    "Time in loading": _seconds("load_seconds"),
    "Time in training": _seconds("train_seconds"),
    "Time in measuring gradients": _seconds("probe_seconds"),
    "Prefetched samples": _prefetched,
}
