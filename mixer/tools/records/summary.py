"""Summaries of runs, from their ledgers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixer.ledger.evaluated_losses import mean_loss, recorded_objective, recorded_weights, worst_loss
from mixer.ledger.folder import open_ledger, read_description, read_note
from mixer.policies.contract import UNITS, Unit
from mixer.policies.objective import Objective
from mixer.utils.text import mixing_unit, rule_in_words

_COLUMNS = ["step", "stream", "weight", "policy_weight", "count", "items", "loss", "coverage", "tokens", "labels"]
_PART = 0.1  # of the steps, for losses of training


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
        development_rows: Number of development rows by evaluation set.
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
    development_rows: Mapping[str, int] = field(default_factory=dict)

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
    note, described = read_note(run), read_description(run)
    unit = mixing_unit(described)
    columns = {"samples": ("count", "sum"), "tokens": ("tokens", "sum"), "labels": ("labels", "sum")}
    weight = "weight" if unit == "samples" else "policy_weight"
    columns |= {"coverage": ("coverage", "last"), "weight": (weight, "mean")}
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
    taken = described.get("development_rows")
    own = (weights, objective, ledger.interval_steps, policy, unit, taken if isinstance(taken, dict) else {})
    return RunSummary(run.name, summary, steps, sets, metrics, *own)


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
