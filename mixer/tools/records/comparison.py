"""Runs side by side, as a table for a terminal, and what keeps them from being compared."""

from collections.abc import Mapping, Sequence

import pandas as pd
from rich.table import Column, Table

from mixer.tools.records.run import Run
from mixer.utils.text import first_of, listed

_MOST_STREAMS = 200  # more rows are not read on a screen
_LIKE = 1.03  # more apart in samples or tokens, runs are told to differ
_Rows = dict[tuple[str, str], list[str]]  # by kind and name, so that a stream may be called "average"


def comparison(runs: Sequence[Run]) -> Table:
    """Renders runs side by side: the objective first, then streams, the average and the worst loss, and metrics.

    If no run was evaluated, it shows the losses of training; if all have rewards, these. Of very many streams it shows
    those with most samples.
    """
    title = "Validation loss, samples and metrics"
    of_steps = "(mean over the first and the last tenth of the steps)"
    if all(run.rewards for run in runs):
        title, runs = f"Reward {of_steps}, prompts and metrics", [_of_rewards(run) for run in runs]
    elif not any(run.evaluations for run in runs):
        title, runs = f"Training loss {of_steps} and samples", [_of_training(run) for run in runs]
    heads = [
        head
        for run in runs
        for head in (f"{run.name}\nfirst → last", f"{run.last_step} steps\nsamples", f"share\nof {run.unit}")
    ]
    table = Table("stream", *(Column(head, justify="right") for head in heads), title=title)
    table.caption = "\n".join(_remarks(runs)) or None
    columns = [_column(run) for run in runs]
    first = [("", "objective")] if any(run.objective is not None for run in runs) else []
    left_out = _minor_streams(runs)
    if left_out:
        table.caption = f"{table.caption or ''}\n{len(left_out):,} streams with fewer samples: --json has them.".strip()
    for key in dict.fromkeys([*first, *(key for column in columns for key in column)]):
        if key[0] == "stream" and key[1] in left_out:
            continue
        table.add_row(key[1], *(cell for column in columns for cell in column.get(key, ["-", "", ""])))
    return table


def _minor_streams(runs: Sequence[Run]) -> set[str]:
    """Names the streams and evaluation sets beyond those with most samples, and the objective's own, if very many."""
    samples = pd.concat([run.figures["samples"] for run in runs]).groupby(level=0, sort=False).max()
    targets = [name for run in runs if run.objective is not None for name in run.objective.names]
    return set(samples.drop(targets, errors="ignore").sort_values(ascending=False, kind="stable").index[_MOST_STREAMS:])


def _column(run: Run) -> _Rows:
    """Gives the cells of a run: loss or metric, samples, share."""
    share = "share" if run.unit == "samples" else f"{run.unit[:-1]}_share"
    rows: _Rows = {}
    if run.objective is not None:
        rows["", "objective"] = _course(run.objective_value(0), run.objective_value())
    for name, row in run.figures.to_dict("index").items():
        cells = _course(row["first_loss"], row["last_loss"]) if name in run.evaluations else ["-", "", ""]
        if not pd.isna(row["samples"]):  # else an evaluation set that is not a stream
            cells[1:] = f"{row['samples']:,}", f"{row[share]:.1%}"
        rows["stream", str(name)] = cells
    if len(run.evaluations) > 1 and not run.rewards:
        rows["over all", "average"] = _course(run.mean_loss(0), run.mean_loss())
        rows["over all", "worst"] = _course(run.worst_loss(0), run.worst_loss())
    for ends in run.metric_ends:
        name = f"{ends['stream']}, {ends['metric'].removeprefix('eval_')}"
        rows["metric", name] = _course(ends["first"], ends["last"])
    return rows


def _course(first: float, last: float) -> list[str]:
    return [f"{first:,.3f} → {last:,.3f}", "", ""]


def _remarks(runs: Sequence[Run]) -> list[str]:
    """Says what a reader of the table must know: intervals, policies by tokens, and runs that cannot be compared."""
    remarks = [f"{run.name}: rows of {run.interval_steps} steps" for run in runs if run.interval_steps > 1]
    if any(run.unit != "samples" for run in runs):
        remarks.append(", ".join(f"{run.name}: {run.policy or 'unknown'}" for run in runs))
    for unit in ("samples", "tokens"):
        amounts = {run.name: int(run.figures[unit].sum()) for run in runs}
        if unlike := unlike_amounts(amounts, unit):
            remarks.append(unlike)
    if judged := judged_apart({run.name: run.development_rows for run in runs}):
        remarks.append(judged)
    return remarks


def unlike_amounts(amounts: Mapping[str, float], unit: str) -> str:
    """Warns that runs trained on different amounts of data; empty if they differ by a few per cent at most.

    Args:
        amounts: Samples, tokens or labels by run.
        unit: Which of them.
    """
    if max(amounts.values()) <= _LIKE * min(amounts.values()):
        return ""
    return (
        f"Their training lengths differ: {listed([f'{number:,.0f} {unit} in {n}' for n, number in amounts.items()])}."
    )


def judged_apart(rows_by_run: Mapping[str, Mapping[str, int]]) -> str:
    """Warns that runs were evaluated on different rows, as some were development rows in one only; empty if not.

    Args:
        rows_by_run: By run, the number of rows by evaluation set that were set aside as development rows.
    """
    sets = dict.fromkeys(name for own in rows_by_run.values() for name in own)
    parts = [
        f"{', '.join(f'{own.get(name, 0)} in {run}' for run, own in rows_by_run.items())} rows of {name} were set aside"
        for name in sets
        if len({own.get(name, 0) for own in rows_by_run.values()}) > 1
    ]
    if not parts:
        return ""
    rows = "; ".join(first_of(parts))
    call = f"Objective({list(sets)}, development_share=0.25)"
    return f"They were evaluated on different rows: {rows}. Set the objective's development_share in all: {call}."


def _of_rewards(run: Run) -> Run:
    """Puts the rewards of rounds of generation in the place of the losses of evaluations."""
    ends = {}
    for name, rows in run.rewards.items():
        tenth = max(1, round(len(rows) / 10))
        ends[name] = pd.DataFrame(
            {"loss": [rows["reward"].iloc[part].mean() for part in (slice(tenth), slice(-tenth, None))]}
        )
    return run.but(evaluations=ends, objective=None, eval_weights=None)


def _of_training(run: Run) -> Run:
    """Puts the losses of training in the place of those of evaluations."""
    losses = run.figures[["first_train_loss", "last_train_loss"]].dropna(subset="last_train_loss")
    ends = {str(name): pd.DataFrame({"loss": row.to_numpy()}) for name, row in losses.iterrows()}
    return run.but(evaluations=ends, objective=None, eval_weights=None)
