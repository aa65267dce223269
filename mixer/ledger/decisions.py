"""Decisions of the policy: as rows of the ledger's table `decisions`, and back."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mixer.policies.contract import Decision, Policy, Terms
from mixer.utils.arrays import FloatArray

_FIELDS = tuple(field.name for field in dataclasses.fields(Decision))
_DECIDED = "decided "  # sets the decision itself apart from the terms that led to it


@dataclass(frozen=True)
class Level:
    """The decision of an inner policy, or of a wrapper around it.

    Args:
        name: Class name of the policy.
        names: Names of the streams that it sees; a replay policy hides the memories from its inner one.
        decision: The decision.
        terms: Its terms; see `Policy.explain`.
    """

    name: str
    names: Sequence[str]
    decision: Decision
    terms: Terms


def levels_of(policy: Policy, decision: Decision, names: Sequence[str]) -> list[Level]:
    """Collects the last decision of a policy and of the policies that it wraps.

    Args:
        policy: The policy.
        decision: Its last decision.
        names: Names of the streams that it sees.

    Returns:
        The levels, the innermost first.
    """
    wrapped = policy.wrapped()
    levels = []
    if wrapped is not None:
        seen = names if wrapped.streams is None else [names[k] for k in wrapped.streams]
        levels = levels_of(wrapped.policy, wrapped.decision, seen)
    return [*levels, Level(type(policy).__name__, tuple(names), decision, policy.explain())]


def is_same(one: Decision, other: Decision) -> bool:
    """Compares two decisions, number by number."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in _FIELDS]
    return all((a is None and b is None) or np.array_equal(a, b) for a, b in pairs)


def rows_of(step: int, levels: Sequence[Level], names: Sequence[str]) -> dict[str, list[Any]]:
    """Lays out a decision.

    Args:
        step: Number of steps done when it was made.
        levels: The levels of the policy; terms that are neither one number nor one per stream are left out.
        names: Names of the run's streams.

    Returns:
        Columns of `decisions`; NaN for a stream that a level does not see.
    """
    rows = []
    for number, level in enumerate(levels):
        values = {f"{_DECIDED}{name}": getattr(level.decision, name) for name in _FIELDS}
        for term, value in {**values, **level.terms}.items():
            if value is None:
                continue
            array = np.array(value, dtype=np.float64)  # a copy: the policy goes on with its own
            if array.ndim == 0:
                rows.append((number, level.name, term, array.reshape(1)))
            elif array.shape == (len(level.names),):
                rows.append((number, level.name, term, _spread(array, level.names, names)))
    columns: dict[str, list[Any]] = {"step": [step] * len(rows), "control": ["weights"] * len(rows)}
    by_place = {name: [row[place] for row in rows] for place, name in enumerate(("level", "rule", "term", "values"))}
    return columns | by_place


def decided_before(decisions: pd.DataFrame, step: int) -> tuple[int | None, pd.DataFrame]:
    """Finds the decision that rules a step.

    Args:
        decisions: The table.
        step: Number of the step.

    Returns:
        Number of steps done when it was made, and its rows; `None` and no rows if none is recorded.
    """
    # Version 0.1.0 also recorded decisions of the batch-size schedule.
    rows = decisions[(decisions["control"] == "weights") & (decisions["step"] < step)]
    made = None if rows.empty else int(rows["step"].max())
    return made, rows[rows["step"] == made]


def levels_in(rows: pd.DataFrame, names: Sequence[str]) -> list[Level]:
    """Reads a decision.

    Args:
        rows: Its rows.
        names: Names of the run's streams when it was made.

    Returns:
        The levels, the innermost first.
    """
    levels = []
    for _, own in rows.groupby("level"):
        arrays = _arrays(own)
        decided = {name: arrays.pop(f"{_DECIDED}{name}", None) for name in _FIELDS}
        weights = decided.pop("weights")
        if weights is None or len(weights) != len(names):  # a damaged row
            continue
        seen = ~np.isnan(weights)
        rest = {name: None if value is None else value[seen] for name, value in decided.items()}
        terms: dict[str, FloatArray | float] = {
            term: value[seen] if len(value) == len(names) else float(value[0]) for term, value in arrays.items()
        }
        seen_names = [name for name, is_seen in zip(names, seen, strict=True) if is_seen]
        levels.append(Level(str(own["rule"].iloc[0]), seen_names, Decision(weights[seen], **rest), terms))
    return levels


def _spread(values: FloatArray, own: Sequence[str], names: Sequence[str]) -> FloatArray:
    if len(own) == len(names):
        return values
    by_name = dict(zip(own, values, strict=True))
    return np.array([by_name.get(name, np.nan) for name in names])


def _arrays(rows: pd.DataFrame) -> dict[str, FloatArray]:
    pairs = zip(rows["term"], rows["values"].tolist(), strict=True)
    return {term: np.asarray(values) for term, values in pairs if values is not None and len(values)}
