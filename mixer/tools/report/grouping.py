"""Groups the minor of very many streams into one, so that pages stay readable."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from mixer.tools.records.clock import Columns
from mixer.tools.records.run import Run
from mixer.tools.records.runs import OTHERS, stream_names
from mixer.tools.report.judging import shares_of

# More colours cannot be told apart, and more panels are not looked at.
MOST_STREAMS = 12
_SUMMED = ("weight", "policy_weight", "count", "items", "loss", "tokens", "labels")


def main_streams(runs: Sequence[Run], first: Sequence[str]) -> list[str]:
    """Chooses the streams and evaluation sets to show separately.

    Args:
        runs: The runs.
        first: Names to prefer, those of findings.

    Returns:
        Names in the order of the runs: all if there are few enough, else the preferred ones and those with the largest
        share of the samples in any run.
    """
    names = list(dict.fromkeys([*stream_names(runs), *(name for run in runs for name in run.evaluations)]))
    if len(names) <= MOST_STREAMS:
        return names
    shares = dict.fromkeys(names, 0.0)  # the greatest in any run: runs may be of very different lengths
    for run in runs:
        shares |= {name: max(shares[name], share) for name, share in shares_of(run).items()}
    preferred = [name for name in dict.fromkeys(first) if name in shares]
    ranked = dict.fromkeys([*preferred, *sorted(names, key=shares.__getitem__, reverse=True)])
    chosen = set(list(ranked)[: MOST_STREAMS - 1])
    return [name for name in names if name in chosen]


def grouped(run: Run, main: Collection[str]) -> Run:
    """Combines all other streams into one.

    Args:
        run: The run.
        main: Names of the streams and evaluation sets to keep.

    Returns:
        The run with one stream and one evaluation set for all others, without their gradients and metrics.
    """
    rest = [rows for name, rows in run.stream_columns.items() if name not in main]
    evaluated = [rows for name, rows in run.evaluation_columns.items() if name not in main]
    return run.but(
        streams={**_of(run.streams, main), **({OTHERS: _one_stream(rest, run.row_clock)} if rest else {})},
        evaluations={**_of(run.evaluations, main), **({OTHERS: _mean_losses(evaluated)} if evaluated else {})},
        metrics=_of(run.metrics, main),
        gradients=_of(run.gradients, main),
        memories={name: _one_source(rows) for name, rows in run.memories.items()},
    )


def _of(parts: Mapping[str, pd.DataFrame], main: Collection[str]) -> dict[str, pd.DataFrame]:
    return {name: parts[name] for name in parts if name in main}


def _one_stream(streams: Sequence[Columns], clock: pd.DataFrame) -> pd.DataFrame:
    """Sums streams, row by row of the clock at their steps; passes are those of single streams."""
    rows = _together(streams, ("step", *_SUMMED))
    rows = rows.assign(loss=(rows["loss"] * rows["items"]).where(rows["items"] > 0, 0.0))
    sums = rows.groupby("step")[list(_SUMMED)].sum().reindex(clock["step"], fill_value=0)
    sums["loss"] /= sums["items"].where(sums["items"] > 0)
    summed = {name: sums[name].to_numpy() for name in _SUMMED}
    return clock[["step", "epoch", "samples"]].assign(**summed, passes=np.nan, coverage=np.nan)


def _mean_losses(evaluations: Sequence[Columns]) -> pd.DataFrame:
    means = _together(evaluations, ("step", "epoch", "samples", "loss")).groupby("step", as_index=False)
    return means[["epoch", "samples", "loss"]].mean()


def _together(parts: Sequence[Columns], names: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in names})


def _one_source(rows: pd.DataFrame) -> pd.DataFrame:
    last = rows.groupby("source", sort=False)["entries"].last()
    if len(last) <= MOST_STREAMS:
        return rows
    sources = rows["source"].where(rows["source"].isin(last.nlargest(MOST_STREAMS).index), OTHERS)
    return rows.assign(source=sources).groupby(["step", "epoch", "samples", "source"], as_index=False, sort=False).sum()
