"""The explanation of a step, looked up in the ledger of its run."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixer.ledger.decisions import Level, levels_in
from mixer.mixture.weights import mean_tokens
from mixer.tools.console import Result
from mixer.tools.records.run import Run
from mixer.tools.report.last_change import last_change
from mixer.utils.arrays import FloatArray
from mixer.utils.text import unit_beside

_TOLERANCE = 1e-9


class Explanation(Result):
    """The decision that ruled a step, and how its counts came of it.

    Attributes:
        run: The run's folder.
        step: Number of the step, the last of its row where a row of the ledger covers several.
        progress: Share of the run that was done before it.
        policy: Name of the policy.
        objective: The declared objective in words; empty without one.
        objective_value: Its value at the last evaluation before the step; NaN without.
        observed: Observations of the step before, one row per stream; empty for the first step.
        evaluated_at: Steps done before the last evaluation that the decision knew, or `None`.
        measured_at: The last step before at which gradients were measured, or `None`.
        decided_at: Steps done when the policy decided; `None` if no decision is recorded.
        levels: The policy's decision, level by level, the innermost first; empty if none is recorded.
        is_decided: Whether the weights are those that the recorded decision gives.
        sentence: Which share changed most, and why.
        weights: One row per stream: before (until the decision; NaN if there was none), policy_weight (decided),
            tokens_per_sample (NaN if the unit is samples; labels_per_sample, if it is labels), active, weight (share of
            the samples), loss_weight.
        counts: One row per stream: asked (share * total), carried, owed (their sum), count, left (owed afterwards).
        total: Samples of the step.
        size: The batch size: schedule (its name), before (that of the step before, or `None`), asked, total (fewer at
            the end of an epoch or of the run), learning_rate_factor (of the batch size on the learning rate).
        notes: Sentences: the first on the decision, then on all else that moved weights or counts.
    """

    def __init__(self, run: Run, row: int):
        step = int(run.row_clock["step"][row])
        self.decided_at, rows = run.decision_before(step)
        decided_at = self.decided_at
        self.levels = [] if decided_at is None else levels_in(rows, run.names_after(decided_at))
        self.is_decided = bool(self.levels) and _rules(self.levels[-1], run, row)
        self.run = run.folder
        self.step = step
        self.progress = float(run.row_clock["progress"][row - 1]) if row else 0.0
        self.policy = f"{run.policy_name or 'unknown'}{unit_beside(run.description.get('mixing'))}"
        self.observed = _observed(run, row)
        self.evaluated_at = max(_evaluated_before(run, step - 1), default=None)
        self.objective = "" if run.objective is None else run.objective.in_words
        self.objective_value = math.nan if self.evaluated_at is None else run.until(self.evaluated_at).objective_value()
        self.measured_at = _measured_before(run, step)
        self.weights = _weights(run, row, self._row_before(run, row))
        ruling = self.levels if self.is_decided else []
        self.sentence = last_change(self.weights, ruling, run.unit, self.objective)
        self.counts = _counts(run, row)
        self.total = int(run.row_clock["total"][row])
        self.size = _size(run, row)
        self.notes = [
            _on_decision(run, row, decided_at if self.levels else None, self.is_decided),
            *_on_weights(run, row, self.weights),
            *_on_counts(run, self.counts),
        ]
        if run.interval_steps > 1:
            self.notes = [_on_interval(run, row)]

    def sentences(self) -> list[str]:
        """Says which step it is, what changed most, and what moved weights and counts."""
        begins = f"Step {self.step} of {self.run}, {self.progress:.1%} done, {self.policy}, {self.total} samples."
        at = "" if math.isnan(self.objective_value) else f": {self.objective_value:.3f} after step {self.evaluated_at}"
        return [begins, self.sentence, *self.notes, *([f"Objective: {self.objective}{at}."] if self.objective else [])]

    def as_data(self) -> dict[str, Any]:
        """Gives all of it as plain data; each table has one entry a stream."""
        levels = [
            {
                "policy": level.name,
                "streams": list(level.names),
                "terms": level.terms,
                "weights": level.decision.weights / np.sum(level.decision.weights),
                "loss_weights": level.decision.loss_weights,
                "additional": level.decision.additional,
            }
            for level in self.levels
        ]
        rows = {name: vars(self)[name].reset_index(names="stream") for name in ("observed", "weights", "counts")}
        return {**vars(self), "levels": levels, **rows}

    def _row_before(self, run: Run, row: int) -> int | None:
        """Finds the last row with the weights before the decision; without one, before the step."""
        if not self.is_decided or self.decided_at is None:
            return row - 1 if row else None
        return run.row_of(self.decided_at) if self.decided_at >= run.row_clock["step"][0] else None


def explain(run: str | Path, step: int | None = None) -> Explanation:
    """Explains the mixture of a step by the run's ledger.

    Args:
        run: The output folder of a trainer.
        step: Number of the step, from 1; `None` for the last.

    Returns:
        The explanation.

    Raises:
        ValueError: If the folder does not exist, or holds no run or no such step.

    Example:
        >>> explain("runs/demo/adaptive", 120).weights  # doctest: +SKIP
    """
    recorded = Run(run)
    return Explanation(recorded, len(recorded.row_clock["step"]) - 1 if step is None else recorded.row_of(step))


def _size(run: Run, row: int) -> dict[str, Any]:
    described, clock = run.description.get("batch_size"), run.row_clock
    return {
        "schedule": described.get("class_path", "unknown") if isinstance(described, dict) else "unknown",
        "before": int(clock["batch_size"][row - 1]) if row else None,
        "asked": int(clock["batch_size"][row]),
        "total": int(clock["total"][row]),
        "learning_rate_factor": float(clock["learning_rate_factor"][row]),
    }


def _rules(level: Level, run: Run, row: int) -> bool:
    """Whether the step had the weights of a decision, and not others that were set by hand."""
    decided = pd.Series(level.decision.weights / np.sum(level.decision.weights), index=list(level.names))
    recorded = run.arrays["policy_weight"][row]
    return np.allclose(decided.reindex(list(run.streams)), recorded, rtol=0.0, atol=_TOLERANCE, equal_nan=True)


def _on_interval(run: Run, row: int) -> str:
    """Says what stands for a step in a ledger whose rows cover several."""
    first, last = (int(run.row_clock["step"][row - 1]) if row else 0) + 1, int(run.row_clock["step"][row])
    return (
        f"A row of this ledger covers up to {run.interval_steps} steps: shares are means and counts sums over the "
        f"steps {first:,} to {last:,}, and only the last decision of each row is kept. Runs with "
        "ledger_interval_steps=1 keep every step."
    )


def _on_decision(run: Run, row: int, decided_at: int | None, is_decided: bool) -> str:
    step, policy = int(run.row_clock["step"][row]), run.policy_name or "the policy"
    if decided_at is None:
        weights = run.arrays["policy_weight"][: row + 1]
        if run.row_clock["step"][0] == 1 and run.has_same_streams and (weights == weights[0]).all():
            return f"No decision is recorded: {policy} has kept the weights that it began the run with."
        return f"No decision of {policy} is recorded for this step: the table `decisions` of the ledger has none."
    when = f"after step {decided_at}" if decided_at else "before the first step"
    if not is_decided:
        return (
            f"These weights are not those that the policy decided {when}, which are shown with its terms: they were "
            "set by hand, or the run was resumed inexactly."
        )
    kept = " and has kept them since" if decided_at < step - 1 else ""
    return f"The policy decided these weights {when}{kept}."


def _on_weights(run: Run, row: int, weights: pd.DataFrame) -> list[str]:
    """Says what moved the weights between the decision and the shares."""
    decided, lengths, shares = (weights[name].to_numpy() for name in ("policy_weight", _of_a_sample(run), "weight"))
    active = weights["active"].to_numpy(dtype=bool)
    notes = []
    if (staleness := int(run.arrays["staleness"][row].max())) > 0:
        notes.append(f"The policy had not seen the last {staleness} steps when it decided.")
    if not np.isnan(lengths).any():
        unit = run.unit
        notes.append(f"Weights are shares of {unit}: divided by {unit} per sample they are shares of samples.")
        decided = decided / lengths
    if absent := [str(name) for name in weights.index[(decided > 0) & ~active]]:
        notes.append(f"Not active, their shares go to the others: {', '.join(absent)}.")
    among = np.where(active, decided, 0.0)
    expected = among / among.sum() if among.sum() > 0 else among
    is_known = run.has_same_streams and not np.isnan(expected).any()
    if is_known and np.abs(expected - shares).max() > _TOLERANCE:
        groupings = run.description.get("groupings")
        given = groupings if isinstance(groupings, list) else []
        names = [grouping.get("name") for grouping in given if isinstance(grouping, dict)]
        by = f"the weights and caps of the groupings {names}" if names else "the samples that streams had left"
        notes.append(f"Moved further by {by}.")
    return notes


def _on_counts(run: Run, counts: pd.DataFrame) -> list[str]:
    """Says why counts are not the owed samples, rounded."""
    if counts[["left", "carried"]].isna().any(axis=None):
        return ["The ledger does not hold how many samples each stream was owed before and after this step."]
    if run.description.get("drawing") == "multinomial":
        return ["Counts were drawn at random (drawing: multinomial): nothing is carried over."]
    if np.abs(counts["owed"] - counts["count"] - counts["left"]).max() > _TOLERANCE:
        return ["A stream ran out, left, or had additional samples: remainders were shared out anew."]
    return []


def _observed(run: Run, row: int) -> pd.DataFrame:
    """Observations of the step before: count, tokens, seen, loss, the last evaluation, gradients."""
    if not row:
        return pd.DataFrame(index=list(run.streams))
    streams, step = run.arrays, int(run.row_clock["step"][row - 1])
    shown = ("tokens", "labels") if run.unit == "labels" else ("tokens",)
    columns: dict[str, Any] = {name: streams[name][row - 1] for name in ("count", *shown, "seen", "loss")}
    evaluated = run.until(step - 1).losses()
    columns["evaluation"] = [evaluated.get(name, np.nan) for name in run.streams]
    if (at := _measured_before(run, step + 1)) is not None:
        measured = run.measurements[at]
        columns["norm"] = np.sqrt(np.diagonal(measured.gram))
        columns |= {"squared_norm": measured.squared_norm, "variance": measured.variance}
    return pd.DataFrame(columns, index=list(run.streams))


def _evaluated_before(run: Run, step: int) -> list[int]:
    """Numbers of steps before those evaluations that came before a step."""
    return [at for rows in run.evaluations.values() for at in rows["step"].tolist() if at < step]


def _measured_before(run: Run, step: int) -> int | None:
    return max((at for at in run.measurements if at < step), default=None)


def _weights(run: Run, row: int, before: int | None) -> pd.DataFrame:
    """From the decided weights to the shares of the samples."""
    streams = run.arrays
    return pd.DataFrame(
        {
            "before": np.nan if before is None else streams["policy_weight"][before],
            "policy_weight": streams["policy_weight"][row],
            _of_a_sample(run): _lengths(run, row),
            "active": streams["active"][row - 1] if row else streams["count"][0] > 0,
            "weight": streams["weight"][row],
            "loss_weight": streams["loss_weight"][row],
        },
        index=list(run.streams),
    )


def _of_a_sample(run: Run) -> str:
    return "labels_per_sample" if run.unit == "labels" else "tokens_per_sample"


def _lengths(run: Run, row: int) -> FloatArray | float:
    """`[num_streams]`: tokens (or labels) per sample by which shares became shares of samples; NaN without."""
    if not row or run.unit == "samples":
        return np.nan
    lengths = mean_tokens(run.arrays["seen"][row - 1], run.arrays[run.unit][:row].sum(axis=0))
    return np.nan if lengths is None else lengths


def _counts(run: Run, row: int) -> pd.DataFrame:
    """From the shares to the counts."""
    streams, total = run.arrays, int(run.row_clock["total"][row])
    before = np.full(len(run.streams), 0.0 if run.row_clock["step"][row] == 1 else np.nan)
    carried = streams["owed"][row - 1] if row else before
    asked = streams["weight"][row] * total
    columns = {"asked": asked, "carried": carried, "owed": carried + asked, "count": streams["count"][row]}
    return pd.DataFrame({**columns, "left": streams["owed"][row]}, index=list(run.streams))
