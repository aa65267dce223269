"""What led to the counts of a step, one row a stream."""

from typing import Any

import numpy as np
import pandas as pd

from mixer.ledger.recorded_run import RecordedRun
from mixer.mixture.weights import mean_tokens
from mixer.utils.arrays import FloatArray


def observed_of(run: RecordedRun, row: int) -> pd.DataFrame:
    """Gives what the step before showed.

    Args:
        run: The run.
        row: The row of the step that is explained.

    Returns:
        Columns count, tokens, seen, loss, evaluation (the last one known), and what was compared or measured; no column
        for the first step.
    """
    if not row:
        return pd.DataFrame(index=list(run.names))
    streams, step = run.streams, int(run.steps[row - 1])
    columns: dict[str, Any] = {name: streams[name][row - 1] for name in ("count", "tokens", "seen", "loss")}
    columns |= {name: values[row - 1] for name, values in run.compared.items()}
    evaluated = {name: loss for at in sorted(run.evaluations) if at < step for name, loss in run.evaluations[at]}
    columns["evaluation"] = [evaluated.get(name, np.nan) for name in run.names]
    if (at := measured_before(run, step + 1)) is not None:
        measured = run.gradients[at]
        columns["norm"] = np.sqrt(np.diagonal(measured.gram))
        columns |= {"squared_norm": measured.squared_norm, "variance": measured.variance}
    return pd.DataFrame(columns, index=list(run.names))


def measured_before(run: RecordedRun, step: int) -> int | None:
    """Finds the last step before one whose gradients were measured.

    Args:
        run: The run.
        step: Number of the step.

    Returns:
        Its number, or `None`.
    """
    return max((at for at in run.gradients if at < step), default=None)


def weights_of(run: RecordedRun, row: int) -> pd.DataFrame:
    """Gives the way from the decided weights to the shares of a step.

    Args:
        run: The run.
        row: The row of the step.

    Returns:
        Columns policy_weight, tokens_per_sample (NaN where weights are of samples), there, weight, loss_weight.
    """
    streams = run.streams
    return pd.DataFrame(
        {
            "policy_weight": streams["policy_weight"][row],
            "tokens_per_sample": _lengths(run, row),
            "active": streams["active"][row - 1] if row else streams["count"][0] > 0,
            "weight": streams["weight"][row],
            "loss_weight": streams["loss_weight"][row],
        },
        index=list(run.names),
    )


def _lengths(run: RecordedRun, row: int) -> FloatArray:
    """`[num_streams]`: tokens of a sample by which shares of tokens became shares of samples; NaN without."""
    lengths = None
    if row and _unit(run.description.get("mixing")) == "tokens":
        lengths = mean_tokens(run.streams["seen"][row - 1], run.num_tokens[row - 1])
    return np.full(len(run.names), np.nan) if lengths is None else lengths


def counts_of(run: RecordedRun, row: int) -> pd.DataFrame:
    """Gives the way from the shares to the counts of a step.

    Args:
        run: The run.
        row: The row of the step.

    Returns:
        Columns asked (share times total), carried, owed (their sum), count, left (owed afterwards).
    """
    streams, total = run.streams, int(run.clock["total"][row])
    before = np.full(len(run.names), 0.0 if run.steps[row] == 1 else np.nan)
    carried = streams["owed"][row - 1] if row else before
    asked = streams["weight"][row] * total
    columns = {"asked": asked, "carried": carried, "owed": carried + asked, "count": streams["count"][row]}
    return pd.DataFrame({**columns, "left": streams["owed"][row]}, index=list(run.names))


def _unit(described: Any) -> str | None:
    """Finds the unit of the innermost policy's weights."""
    arguments = described.get("init_args") if isinstance(described, dict) else None
    if not isinstance(arguments, dict):
        return None
    return _unit(arguments["policy"]) if isinstance(arguments.get("policy"), dict) else arguments.get("unit")
