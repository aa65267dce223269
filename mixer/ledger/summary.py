"""Summaries and comparison of runs, from their ledgers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table

from mixer.ledger.evaluated_losses import mean_loss, recorded_objective, recorded_weights, worst_loss
from mixer.ledger.folder import open_ledger, read_description, read_note
from mixer.policies.contract import UNITS, Unit
from mixer.policies.objective import Objective
from mixer.utils.text import first_of, listed, mixing_unit, rule_in_words

_COLUMNS = ["step", "stream", "weight", "policy_weight", "count", "items", "loss", "coverage", "tokens", "labels"]
_LIKE = 1.03  # more apart in samples or tokens, runs are told to differ
_PART = 0.1  # of the steps, for losses of training
_MOST_WHOLE = 2  # runs side by side on a screen, with all their columns


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run's ledger.

    Args:
        name: Name of the run's folder.
        streams: One row per stream or other evaluation set, indexed by name: `first_loss` and `last_loss` of
            evaluations, `samples`, `tokens`, `labels`, their shares `share`, `token_share` and `label_share`,
            `coverage`, `weight` (mean of
            what was asked for, in the policy's unit), `first_train_loss` and `last_train_loss` (means over
            the first and the last tenth of the steps).
        steps: Number of steps.
        evaluated: Names of evaluated sets; others, such as memories, have no loss.
        metrics: Results of `compute_metrics`, one row per set and metric: `stream`, `metric`, `first`, `last`.
        eval_weights: Weights of evaluation sets; `None` for the plain mean.
        objective: The declared objective, or `None`.
        interval_steps: Number of steps that a row of the ledger covers.
        policy: Name of the policy with its unit; empty if unknown.
        unit: What its weights are shares of.
        steering_rows: Number of rows by evaluation set that were set aside to steer.
    """

    name: str
    streams: pd.DataFrame
    steps: int
    evaluated: frozenset[str]
    metrics: pd.DataFrame
    eval_weights: Mapping[str, float] | None
    objective: Objective | None = None
    interval_steps: int = 1
    policy: str = ""
    unit: Unit = "samples"
    steering_rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def table(self) -> pd.DataFrame:
        """`streams` with the names as a column."""
        return self.streams.reset_index(names="stream")

    @property
    def mean_losses(self) -> tuple[float, float]:
        """First and last `eval_loss`."""
        return self._over_sets(lambda losses: mean_loss(losses, self.eval_weights))

    @property
    def worst_losses(self) -> tuple[float, float]:
        """First and last `eval_worst_loss`."""
        return self._over_sets(worst_loss)

    @property
    def objectives(self) -> tuple[float, float]:
        """First and last `eval_objective`; NaN without an objective, or if a target was not evaluated."""
        objective = self.objective
        if objective is None:
            return math.nan, math.nan
        if objective.metric == "loss":
            return self._over_sets(objective.value)
        rows = self.metrics[self.metrics["metric"] == objective.metric]
        first, last = (objective.value(dict(zip(rows["stream"], rows[end], strict=True))) for end in ("first", "last"))
        return first, last

    def as_data(self) -> dict[str, Any]:
        """Returns `steps`, `eval_loss` and others over sets (each `first` and `last`), `streams` and `metrics`."""
        over_sets = {"eval_loss": self.mean_losses, "eval_worst_loss": self.worst_losses}
        over_sets |= {} if self.objective is None else {"eval_objective": self.objectives}
        return {
            "steps": self.steps,
            "policy": self.policy,
            **({} if self.interval_steps == 1 else {"interval_steps": self.interval_steps}),
            **{name: {"first": first, "last": last} for name, (first, last) in over_sets.items()},
            "streams": self.table,
            "metrics": self.metrics,
        }

    def _over_sets(self, reduce: Callable[[dict[str, float]], float]) -> tuple[float, float]:
        rows = self.streams[self.streams.index.isin(self.evaluated)]
        ends = (rows[column].tolist() for column in ("first_loss", "last_loss"))
        first, last = (reduce(dict(zip(rows.index, losses, strict=True))) for losses in ends)
        return first, last


def summarise(run: Path) -> RunSummary:
    """Reads the summary of a run.

    Args:
        run: Output folder of a trainer.

    Raises:
        ValueError: If the folder has no ledger with rows, or a damaged one.
    """
    ledger = open_ledger(run)
    rows = ledger.read("streams", _COLUMNS).to_pandas()
    note = read_note(run)
    described = read_description(run)
    unit = mixing_unit(described)
    columns = {"samples": ("count", "sum"), "tokens": ("tokens", "sum"), "labels": ("labels", "sum")}
    columns |= {
        "coverage": ("coverage", "last"),
        "weight": ("weight" if unit == "samples" else "policy_weight", "mean"),
    }
    summary = rows.groupby("stream", sort=False).agg(**columns)
    for share, amount in {"share": "samples", "token_share": "tokens", "label_share": "labels"}.items():
        summary[share] = summary[amount] / max(int(summary[amount].sum()), 1)
    evaluations = ledger.evaluations()
    evaluated = dict.fromkeys(evaluations["stream"])
    summary = summary.astype(dict.fromkeys(UNITS, "Int64")).reindex(list(dict.fromkeys([*summary.index, *evaluated])))
    # First and last entries, even if they are NaN.
    losses = _first_and_last(evaluations, ["stream"], "loss").add_suffix("_loss")
    summary = losses.reindex(summary.index).join(summary).join(_training_losses(rows))
    weights, objective = recorded_weights(run, note), recorded_objective(run, note)
    metrics = _first_and_last(ledger.metrics(), ["stream", "metric"], "value").reset_index()
    sets, steps = frozenset(evaluated), int(rows["step"].max())
    policy = rule_in_words(described["mixing"]) if "mixing" in described else ""
    taken = described.get("steering_rows")
    own = (weights, objective, ledger.interval_steps, policy, unit, taken if isinstance(taken, dict) else {})
    return RunSummary(run.name, summary, steps, sets, metrics, *own)


def comparison(summaries: Sequence[RunSummary]) -> RenderableType:
    """Renders runs side by side: losses and samples, and other metrics if there are any."""
    metrics = metrics_table(summaries)
    return Group(comparison_table(summaries), *([metrics] if metrics.row_count else []))


def comparison_table(summaries: Sequence[RunSummary]) -> Table:
    """Returns a table of losses and samples: the objective first, then streams, average (`eval_loss`) and worst.

    An objective that is the loss of one target is the row of that target, and of a single evaluation set there is no
    average. Of more than two runs it shows the last losses and the samples alone. If no run was evaluated, it shows the
    losses of training.
    """
    title = "Validation loss and samples by stream"
    if not any(summary.evaluated for summary in summaries):
        title = "Training loss (mean over the first and the last tenth of the steps) and samples by stream"
        summaries = [_of_training(summary) for summary in summaries]
    is_short = len(summaries) > _MOST_WHOLE
    units = [unit for unit in UNITS[1:] if any(summary.unit == unit for summary in summaries)]
    titles = ["\nsamples", *(f"share\nof {unit}" for unit in units), "\ncoverage", "mean\nweight"]
    titles = titles[: len(titles) - 2 * is_short]
    width = 1 + len(titles)
    table = Table(title=title, caption="\n".join(_remarks(summaries)) or None)
    table.add_column("stream", justify="left")
    for summary in summaries:
        table.add_column(f"{summary.name}\n{'loss' if is_short else 'loss first → last'}", justify="right")
        for title in (f"{summary.steps} steps{titles[0]}", *titles[1:]):
            table.add_column(title, justify="right")
    rows = {
        name: [_cells(summary, name, is_short, units)[:width] for summary in summaries]
        for name in dict.fromkeys(name for summary in summaries for name in summary.streams.index)
    }
    if any(summary.objective is not None for summary in summaries):
        target, measure = _only_target(summaries) or ("", "")
        is_row = measure == "loss" and target in rows
        own = _target_cells(target, rows.pop(target), summaries) if is_row else _objective_cells(summaries, width)
        label = f"objective:\n{target}" + (f", {measure}" if measure != "loss" else "") if target else "objective"
        table.add_row(label, *own, style="bold")
        table.add_section()
    for name, cells in rows.items():
        table.add_row(name, *(cell for own in cells for cell in own))
    table.add_section()
    has_several = any(len(summary.evaluated) > 1 for summary in summaries)
    averages, worst = [], []
    for summary in summaries:
        total, rest = f"({summary.streams['samples'].sum():,})", [""] * (width - 2)
        averages += [_over_sets(summary, summary.mean_losses, is_short) if has_several else "", total, *rest]
        worst += [_over_sets(summary, summary.worst_losses, is_short), "", *rest]
    table.add_row("average" if has_several else "all", *averages)
    if has_several:
        table.add_row("worst", *worst)
    return table


def _only_target(summaries: Sequence[RunSummary]) -> tuple[str, str] | None:
    """Returns target and measure if they are the whole objective of all runs that declare one; else `None`."""
    goals = [summary.objective for summary in summaries if summary.objective is not None]
    found = {(name, goal.metric) for goal in goals for name, weight in goal.importance.items() if weight > 0.0}
    return found.pop() if len(found) == 1 else None


def _target_cells(name: str, rows: Sequence[Sequence[str]], summaries: Sequence[RunSummary]) -> list[str]:
    """Puts behind the loss of a set how far it lies from that of the first run."""
    changes = _changes([one.streams["last_loss"].get(name, math.nan) for one in summaries])
    return [
        cell for own, change in zip(rows, changes, strict=True) for cell in (f"{own[0]}\n{change}".rstrip(), *own[1:])
    ]


def _changes(values: Sequence[float]) -> list[str]:
    """Writes how far values lie from the first; empty where that is not known."""
    first = values[0]
    changes = [value / first - 1.0 if first and number else math.nan for number, value in enumerate(values)]
    return ["" if math.isnan(change) else f"{100 * change:+.1f} %" for change in changes]


def _remarks(summaries: Sequence[RunSummary]) -> list[str]:
    """Says what a reader of the table must know: intervals, policies by tokens, and runs that cannot be compared."""
    remarks = [f"{one.name}: rows of {one.interval_steps} steps" for one in summaries if one.interval_steps > 1]
    if any(one.unit != "samples" for one in summaries):
        remarks.append(", ".join(f"{one.name}: {one.policy or 'unknown'}" for one in summaries))
    for unit in ("samples", "tokens"):
        amounts = {one.name: int(one.streams[unit].sum()) for one in summaries}
        if unlike := unlike_amounts(amounts, unit):
            remarks.append(unlike)
    if judged := judged_apart({one.name: one.steering_rows for one in summaries}):
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
    return f"They were not trained alike: {listed([f'{number:,.0f} {unit} in {n}' for n, number in amounts.items()])}."


def judged_apart(taken: Mapping[str, Mapping[str, int]]) -> str:
    """Warns that runs were evaluated on different rows, because some steered in one of them only; empty if not.

    Args:
        taken: By run, the number of rows by evaluation set that were set aside to steer.
    """
    sets = dict.fromkeys(name for own in taken.values() for name in own)
    parts = [
        f"{', '.join(f'{own.get(name, 0)} in {run}' for run, own in taken.items())} rows of {name} were set aside"
        for name in sets
        if len({own.get(name, 0) for own in taken.values()}) > 1
    ]
    if not parts:
        return ""
    return (
        f"They were judged by different rows: {'; '.join(first_of(parts))}. Set the objective's steering_share in all."
    )


def _of_training(summary: RunSummary) -> RunSummary:
    """Puts the losses of training in the place of those of evaluations."""
    streams = summary.streams.assign(
        first_loss=summary.streams["first_train_loss"], last_loss=summary.streams["last_train_loss"]
    )
    trained = frozenset(streams.index[streams["last_loss"].notna()])
    return replace(summary, streams=streams, evaluated=trained, eval_weights=None, objective=None)


def _objective_cells(summaries: Sequence[RunSummary], width: int) -> list[str]:
    """The objective of each run, and how far it lies from that of the first."""
    cells = []
    changes = _changes([summary.objectives[1] for summary in summaries])
    for summary, change in zip(summaries, changes, strict=True):
        value = (
            "-" if summary.objective is None else _over_sets(summary, summary.objectives, len(summaries) > _MOST_WHOLE)
        )
        cells += [value, change, *[""] * (width - 2)]
    return cells


def metrics_table(summaries: Sequence[RunSummary]) -> Table:
    """Returns a table of `compute_metrics` results, one row per set and metric."""
    table = Table(title="Metrics by stream")
    table.add_column("stream", justify="left")
    table.add_column("metric", justify="left")
    courses: dict[tuple[str, str], list[str]] = {}
    for place, summary in enumerate(summaries):
        table.add_column(f"{summary.name}\nfirst → last", justify="right")
        columns = (summary.metrics[column].tolist() for column in ("stream", "metric", "first", "last"))
        for name, metric, first, last in zip(*columns, strict=True):
            key = (name, metric.removeprefix("eval_"))  # as TRL names those of every set
            is_count = key[1].startswith("num_")  # such as TRL's num_tokens
            text = f"{first:,.0f} → {last:,.0f}" if is_count else _course(first, last)
            courses.setdefault(key, ["-"] * len(summaries))[place] = text
    if all(summary.objective is not None for summary in summaries):  # then it is the first row of the other table
        courses.pop(_only_target(summaries) or ("", ""), None)
    for (name, metric), cells in courses.items():
        table.add_row(name, metric, *cells)
    return table


def _first_and_last(rows: pd.DataFrame, keys: list[str], column: str) -> pd.DataFrame:
    first, last = (rows.drop_duplicates(keys, keep=kept).set_index(keys)[column] for kept in ("first", "last"))
    return pd.DataFrame({"first": first, "last": last.reindex(first.index)})


def _training_losses(rows: pd.DataFrame) -> pd.DataFrame:
    """Averages each stream's loss over the items of the first and of the last tenth of the steps."""
    rows = rows[rows["items"] > 0]
    steps = rows["step"].unique()
    tenth = max(1, round(_PART * len(steps)))
    losses = {}
    for name, part in {"first": steps[:tenth], "last": steps[-tenth:]}.items():
        by_stream = rows[rows["step"].isin(part)].groupby("stream")
        means = {stream: np.average(own["loss"], weights=own["items"]) for stream, own in by_stream}
        losses[f"{name}_train_loss"] = pd.Series(means, dtype=np.float64)
    return pd.DataFrame(losses)


def _over_sets(summary: RunSummary, course: tuple[float, float], is_short: bool) -> str:
    return _course(*course, is_short) if summary.evaluated else "-"


def _cells(summary: RunSummary, name: str, is_short: bool, units: Sequence[Unit]) -> list[str]:
    if name not in summary.streams.index:
        return ["-"] * (4 + len(units))
    row: dict[str, Any] = {column: summary.streams.at[name, column] for column in summary.streams.columns}
    losses = _course(row["first_loss"], row["last_loss"], is_short) if name in summary.evaluated else "-"
    coverage = "-" if pd.isna(row["coverage"]) else f"{row['coverage']:.0%}"
    if pd.isna(row["samples"]):  # an evaluation set that is not a stream
        return [losses, *["-"] * (3 + len(units))]
    tokens = [f"{row[f'{unit[:-1]}_share']:.1%}" for unit in units]
    return [losses, f"{int(row['samples']):,}", *tokens, coverage, f"{row['weight']:.3f}"]


def _course(first: float, last: float, is_short: bool = False) -> str:
    return f"{last:.3f}" if is_short else f"{first:.3f} → {last:.3f}"
