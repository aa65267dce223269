"""What every single stream of a run got and gave: also those that plots show as one with others."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from mixer.analysis.report.ending import not_finite_since
from mixer.analysis.report.plots.losses import smoothed
from mixer.analysis.report.run import Run

_WRITTEN: dict[str, Callable[[float], str]] = {
    "samples": "{:,.0f}".format,
    "share": "{:.1%}".format,
    "first_weight": "{:.3f}".format,
    "last_weight": "{:.3f}".format,
    "coverage": "{:.0%}".format,
    "passes": "{:.2f}".format,
    "cap": "{:g}".format,
    "training_loss": "{:.3f}".format,
    "training_not_finite_since": "step {:,.0f}".format,
    "first_validation_loss": "{:.3f}".format,
    "last_validation_loss": "{:.3f}".format,
    "validation_not_finite_since": "step {:,.0f}".format,
}
# Whole numbers, also where some are not known.
_COUNTS = ("samples", "training_not_finite_since", "validation_not_finite_since")


def stream_figures(run: Run) -> pd.DataFrame:
    """Gives the main figures of each stream.

    Args:
        run: The run.

    Returns:
        One row a stream or other evaluation set: stream, samples, share (of all samples), first_weight, last_weight,
        coverage, passes, cap, training_loss (smoothed, the last), training_not_finite_since (the step since which it is
        not finite), first_validation_loss, last_validation_loss, validation_not_finite_since, and for each metric of
        evaluations first_validation_METRIC and last_validation_METRIC; NaN where there is none.
    """
    total = sum(int(rows["count"].sum()) for rows in run.streams.values()) or 1
    names = dict.fromkeys([*run.streams, *run.evaluations, *run.metrics])
    metrics = {name: _of_metrics(run, name) for name in names}
    rows = [
        {"stream": name, **_of_stream(run, name, total), **_of_evaluations(run, name), **metrics[name]}
        for name in names
    ]
    measured = dict.fromkeys(column for own in metrics.values() for column in own)
    return pd.DataFrame(rows, columns=["stream", *_WRITTEN, *measured]).astype(dict.fromkeys(_COUNTS, "Int64"))


def stream_cells(run: Run) -> tuple[list[str], list[list[str]]]:
    """Writes these figures for people.

    Args:
        run: The run.

    Returns:
        The heads of the columns that have any figure, and the cells, one row a stream.
    """
    figures = stream_figures(run)
    columns = [column for column in figures.columns[1:] if figures[column].notna().any()]
    written = {column: _WRITTEN.get(column, "{:.3f}".format) for column in columns}
    cells = [
        [str(row["stream"]), *("" if pd.isna(row[column]) else written[column](row[column]) for column in columns)]
        for row in figures.to_dict("records")
    ]
    return ["stream", *(column.replace("_", " ") for column in columns)], cells


def _of_stream(run: Run, name: str, total: int) -> dict[str, float | None]:
    if name not in run.streams:
        return {}
    rows = run.streams[name]
    samples, since = int(rows["count"].sum()), not_finite_since(rows)
    return {
        "samples": samples,
        "share": samples / total,
        "first_weight": rows["weight"].iloc[0],
        "last_weight": rows["weight"].iloc[-1],
        "coverage": rows["coverage"].iloc[-1],
        "passes": rows["passes"].iloc[-1],
        "cap": run.caps.get(name, np.nan),
        "training_loss": smoothed(rows).iloc[-1] if since is None else np.nan,
        "training_not_finite_since": since,
    }


def _of_evaluations(run: Run, name: str) -> dict[str, float | None]:
    if name not in run.evaluations:
        return {}
    rows = run.evaluations[name]
    return {
        "first_validation_loss": rows["loss"].iloc[0],
        "last_validation_loss": rows["loss"].iloc[-1],
        "validation_not_finite_since": not_finite_since(rows),
    }


def _of_metrics(run: Run, name: str) -> dict[str, float]:
    if name not in run.metrics:
        return {}
    rows = run.metrics[name]
    first, last = (
        rows.drop_duplicates("metric", keep=kept).set_index("metric")["value"].to_dict() for kept in ("first", "last")
    )
    return {
        f"{place}_validation_{metric}": values[metric]
        for metric in first
        for place, values in (("first", first), ("last", last))
    }
