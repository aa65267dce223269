"""A sentence on a decision: which share changed most, and what the policy saw of that stream."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mixer.ledger.decisions import Level, levels_in
from mixer.tools.records.run import Run
from mixer.utils.text import first_of, listed

# What terms of policies say of a stream; others are told by their names.
_SAID = {
    "scores": "the estimated gain of the objective{goal} from one more of its samples is the {rank}",
    "last loss": "its last loss is the {rank}",
    "progress": "the change of its loss is the {rank}",
    "reward": "its mean loss, the reward, is the {rank}",
    "squared_norm": "its mean gradient is the {rank}",
}
_LEAST_CHANGE = 0.0005  # of a share
_LEAST_CHANGED = 0.01  # by a wrapper
_THIN = 0.5  # of the scores' differences, that noise does not explain
_AS_TARGETS = "drawn as targets"  # a term of `Safeguard`
_NOT_SAID = ("memory", "weights", "own weight", "mean weight", "kept weight")


def last_decision(run: Run) -> str:
    """Says what the decision that ruled the last step of a run changed most, and why; empty if none is recorded."""
    at, rows = run.decision_before(int(run.row_clock["step"].iloc[-1]))
    levels = [] if at is None else levels_in(rows, run.names_after(at))
    if at is None or not levels:
        return ""
    weights = {name: own.set_index("step")["policy_weight"] for name, own in run.streams.items()}
    before = {name: own[own.index <= at].tail(1).sum(min_count=1) for name, own in weights.items()}
    last = {name: own.iloc[-1] for name, own in weights.items()}
    frame = pd.DataFrame({"before": before, "policy_weight": last})
    goal = "" if run.objective is None else run.objective.in_words
    return f"after step {at:,}: {last_change(frame, levels, run.unit, goal)}"


def last_change(weights: pd.DataFrame, levels: Sequence[Level], unit: str, objective: str) -> str:
    """Says which share changed most since the decision before, and why.

    Args:
        weights: One row per stream: before, policy_weight.
        levels: The decision, level by level, the innermost first; empty if these weights are not decided.
        unit: What the weights are shares of.
        objective: The declared objective in words; empty without one.
    """
    after, before = weights["policy_weight"], weights["before"]
    change = (after - before).abs().fillna(0.0)
    has_changed = change.max() >= _LEAST_CHANGE
    name = str(change.idxmax() if has_changed else after.idxmax())
    if has_changed:
        begins = f"{name} {before[name]:.1%} → {after[name]:.1%} of the {unit}"
    else:
        is_largest = after.max() - after.min() >= _LEAST_CHANGE
        begins = f"{name} has the largest share" if is_largest else f"All {len(after)} streams have the same share"
        begins += f", {after[name]:.1%} of the {unit}, {'as at the start' if before.isna().all() else 'as before'}"
    reason = _reason(name, levels, objective, float(after[name] - before[name]) if has_changed else 0.0)
    parts = [text for text in (reason, _wrapped(name, after[name], levels)) if text]
    return f"{begins}: {'. '.join(parts)}." if parts else f"{begins}."


def _reason(name: str, levels: Sequence[Level], objective: str, change: float) -> str:
    """Says what the innermost policy saw of a stream, beside the others; empty if it has no such term.

    Args:
        name: The stream.
        levels: See `last_change`.
        objective: See `last_change`.
        change: Of its share, 0 if none has changed.
    """
    if not levels or name not in levels[0].names:
        return ""
    inner, place = levels[0], levels[0].names.index(name)
    terms = {
        key: np.asarray(term, dtype=np.float64)
        for key, term in inner.terms.items()
        if np.shape(term) == (len(inner.names),) and key not in _NOT_SAID
    }
    if any(key in _SAID and np.isnan(term).all() for key, term in terms.items()):
        return "nothing is measured yet"
    terms = {key: term for key, term in terms.items() if np.isfinite(term[place]) and np.nanmax(term) > np.nanmin(term)}
    key = next((key for key in _SAID if key in terms), next(iter(terms), None))
    if key is None:
        return ""
    known = terms[key][np.isfinite(terms[key])]
    rank = _ranked(int((known > terms[key][place]).sum()) + 1, len(known))
    goal = f", {objective}," if objective else ""
    said = _SAID.get(key, f"its {key} is the {{rank}}").format(rank=rank, goal=goal)
    said = f"{said} ({key} {terms[key][place]:.3g})"
    if key != "scores" or change * (terms[key][place] - known.mean()) >= 0.0:
        return said
    trust = float(np.asarray(inner.terms.get("trust", 1.0)).item())
    if trust >= _THIN:
        return f"although {said}"
    thin = f"the evidence is thin (trust {trust:.2g} of 1), so shares return towards those of the start"
    return f"{thin}, although {said}"


def _ranked(place: int, number: int) -> str:
    if place == number > 1:
        return f"least of {number}"
    ending = {1: "", 2: "2nd ", 3: "3rd "}.get(place, f"{place}th ")
    return f"{ending}largest of {number}"


def _wrapped(name: str, share: float, levels: Sequence[Level]) -> str:
    """Says what wrappers made of the innermost policy's share; empty if they changed little."""
    if len(levels) < 2 or name not in levels[0].names:
        return ""
    decided = levels[0].decision.weights
    inner = float(decided[levels[0].names.index(name)] / decided.sum())
    if abs(inner - share) < _LEAST_CHANGED:
        return ""
    found = f"{levels[0].name} alone gives it {inner:.1%}, {levels[-1].name} makes that {share:.1%}"
    for level in levels:
        drawn = dict(zip(level.names, np.nan_to_num(np.ravel(level.terms.get(_AS_TARGETS, []))), strict=False))
        if names := [target for target, part in drawn.items() if part > 0.0]:
            targets, part = listed(first_of(names)), sum(drawn.values())
            return f"{found}, as {part:.0%} of each batch is drawn from the targets ({targets})"
    return found
