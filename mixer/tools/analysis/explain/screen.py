"""An explanation on one screen, or as plain data."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mixer.ledger.decisions import Level
from mixer.tools.analysis.explain.explanation import Explanation

_MAX_STREAMS = 5
_LARGE = 0.1  # a share that is never hidden
_MAX_COLUMNS = 6
_SHARES = ("before", "policy_weight", "weight")
_WORDS = {
    "count": "samples",
    "seen": "so far",
    "policy_weight": "decided",
    "tokens_per_sample": "tokens/sample",
    "labels_per_sample": "labels/sample",
    "weight": "share",
    "loss_weight": "of loss",
    "norm": "|g|",
    "squared_norm": "|g|² true",
}


def screen(explanation: Explanation) -> RenderableType:
    """Lays an explanation out, in 80 columns by 40 lines.

    Of more than five streams it shows the five largest, now or before the decision, and all that give a tenth.
    """
    shown = _chosen(explanation)
    parts: list[RenderableType] = [
        Text(
            f"Step {explanation.step} of {explanation.run}, {explanation.progress:.1%} done, {explanation.policy}",
            style="bold",
        ),
        Text(explanation.sentence),
        Text(explanation.notes[0]),
    ]
    if explanation.objective:
        value, at = explanation.objective_value, explanation.evaluated_at
        seen = "" if math.isnan(value) else f": {value:.3f} at the evaluation after step {at}"
        parts.append(Text(f"The objective is the {explanation.objective}{seen}."))
    if not explanation.observed.columns.empty:
        evaluated = "" if explanation.evaluated_at is None else f", evaluation after {explanation.evaluated_at}"
        measured = "" if explanation.measured_at is None else f", gradients of {explanation.measured_at}"
        title = f"1 Observed in step {explanation.step - 1} (losses per item){evaluated}{measured}"
        parts += _table(title, explanation.observed.loc[shown])
    parts += _decided(explanation.levels, shown)
    weights = explanation.weights.loc[shown]
    plain = [name for name in weights.columns if name.endswith(("_per_sample", "loss_weight"))]
    plain = [name for name in plain if _says_nothing(weights[name])]
    joined = pd.concat([weights.drop(columns=plain), explanation.counts.loc[shown]], axis=1)
    title = f"3 From the decision to the counts, in samples: owed = share * {explanation.total} + carried"
    parts += _table(title, joined.drop(columns="asked"))
    parts += [Text(note) for note in explanation.notes[1:]]
    parts.append(_size(explanation))
    if hidden := len(explanation.weights) - len(shown):
        rest = float(explanation.weights["weight"].drop(shown).sum())
        parts.append(Text(f"{hidden} more streams, {rest:.1%} of the samples together, are in --json."))
    return Group(*parts)


def _chosen(explanation: Explanation) -> list[str]:
    """Names of the streams to show: the largest ones."""
    shares = explanation.weights[[*_SHARES]].max(axis=1).fillna(0.0)
    number = max(_MAX_STREAMS, int((shares >= _LARGE).sum()))
    largest = set(shares.sort_values(ascending=False, kind="stable").index[:number])
    return [name for name in shares.index if name in largest]


def _decided(levels: Sequence[Level], shown: Sequence[str]) -> list[RenderableType]:
    """Lays out the terms of the innermost policy, and in a second table the decision of each wrapper."""
    if not levels:
        return []
    inner = levels[0]
    by_stream = {name: term for name, term in inner.terms.items() if np.shape(term) == (len(inner.names),)}
    numbers = [f"{name} {_number(term)}" for name, term in inner.terms.items() if np.ndim(term) == 0]
    columns = {**dict(list(by_stream.items())[:_MAX_COLUMNS]), **_weights(inner, "")}
    beside = f" ({', '.join(numbers[:_MAX_COLUMNS])})" if numbers else ""
    parts = _table(f"2 {inner.name} decides{beside}", _frame(columns, inner, shown), ("→ weight",))
    if len(levels) > 1:
        made = [_frame(_weights(level, level.name), level, shown) for level in levels[1:]]
        parts += _table(
            "  changed by wrappers", pd.concat(made, axis=1).reindex(list(shown)), [one.name for one in levels[1:]]
        )
    return parts


def _weights(level: Level, name: str) -> dict[str, Any]:
    decision = level.decision
    columns = {name or "→ weight": decision.weights / np.sum(decision.weights)}
    if decision.loss_weights is not None:
        columns[f"{name or '→'} of loss"] = decision.loss_weights
    if decision.additional is not None:
        columns[f"{name or '→'} on top"] = decision.additional
    return columns


def _frame(columns: Mapping[str, Any], level: Level, shown: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(columns, index=list(level.names))
    return frame.loc[[name for name in shown if name in frame.index]]


def _size(explanation: Explanation) -> Text:
    size = explanation.size
    before = "" if size.before is None or size.before == size.asked else f" (before: {size.before})"
    part = "" if size.total == size.asked else f", {size.total} samples (the rest of an epoch, or additional ones)"
    factor = "" if size.learning_rate_factor == 1.0 else f", learning rate times {_number(size.learning_rate_factor)}"
    return Text(f"4 Batch size {size.asked}{before}{part} by {size.schedule}{factor}.")


def _says_nothing(column: pd.Series) -> bool:
    return bool(column.isna().all() or (column.name == "loss_weight" and (column == 1.0).all()))


def _table(title: str, frame: pd.DataFrame, shares: Collection[str] = _SHARES) -> list[RenderableType]:
    frame = frame[[name for name in frame.columns if not frame[name].isna().all()]]
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("stream", overflow="ellipsis", no_wrap=True, max_width=16)
    for name in frame.columns:
        table.add_column(_WORDS.get(name, name), justify="right", overflow="fold", max_width=13)
    for name, *values in frame.itertuples():
        cells = zip(frame.columns, values, strict=True)
        table.add_row(str(name), *(_share(value) if head in shares else _number(value) for head, value in cells))
    return [Text(title, style="bold"), table]


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2%}"


def _number(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"


def as_json(explanation: Explanation) -> Mapping[str, Any]:
    """Gives an explanation for `print_json`: each table has one entry a stream."""
    levels = [
        {
            "policy": level.name,
            "streams": list(level.names),
            "terms": level.terms,
            "weights": level.decision.weights / np.sum(level.decision.weights),
            "loss_weights": level.decision.loss_weights,
            "additional": level.decision.additional,
        }
        for level in explanation.levels
    ]
    rows = {name: vars(explanation)[name].reset_index(names="stream") for name in ("observed", "weights", "counts")}
    return {**vars(explanation), "levels": levels, **rows}
