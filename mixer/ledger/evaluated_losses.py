"""The figures over all evaluation sets, the same wherever a run is logged, kept by its best model, or compared."""

import math
from collections.abc import Collection, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from mixer.policies.contract import check_weights

# What a Trainer tells of an evaluation beside what `compute_metrics` gave.
_OWN = frozenset(
    {"loss", "runtime", "samples_per_second", "steps_per_second", "tokens_per_second"}
    | {"model_preparation_time", "jit_compilation_time"}
)


def check_eval_weights(weights: Mapping[str, float] | None, eval_dataset: Any) -> None:
    """Refuses weights that do not name each of the evaluation sets.

    Args:
        weights: What the user gives as `eval_weights`.
        eval_dataset: The evaluation data.

    Raises:
        ValueError: If the data are no dict, a set is missing or unknown, or the weights are none.
        TypeError: If they are not given by name.
    """
    if weights is None:
        return
    if not isinstance(weights, Mapping):
        raise TypeError(f"eval_weights must be a mapping of evaluation sets to numbers, got {weights!r}.")
    sets = list(eval_dataset) if isinstance(eval_dataset, Mapping) else None
    if sets is None or weights.keys() != set(sets):
        there = "is no dict" if sets is None else f"has the sets {sets}"
        raise ValueError(f"eval_weights names {list(weights)}, but eval_dataset {there}: give each set one weight.")
    check_weights(np.array([float(weights[name]) for name in sets]), sets, "eval_weights")


def mean_loss(losses: Mapping[str, float], weights: Mapping[str, float] | None = None) -> float:
    """Averages losses of evaluation sets: `eval_loss`.

    Args:
        losses: Losses by name of the set.
        weights: What the user gave as `eval_weights`; `None` for the plain mean.

    Returns:
        The mean; NaN of no sets. It is the plain one too if a set has no weight, or none has one above 0. A set of
        weight 0 does not count, whatever its loss.
    """
    if not losses:
        return math.nan
    values, shares = np.array(list(losses.values()), dtype=np.float64), np.ones(len(losses))
    if weights is not None and losses.keys() <= weights.keys() and any(weights[name] for name in losses):
        shares = np.array([weights[name] for name in losses], dtype=np.float64)
    return float((values * shares)[shares > 0].sum() / shares.sum())


def worst_loss(losses: Mapping[str, float]) -> float:
    """Gives the greatest loss of evaluation sets: `eval_worst_loss`.

    Args:
        losses: Losses by name of the set.

    Returns:
        It; NaN of no sets, and if one is: no number is worse than any.
    """
    return float(np.max(list(losses.values()))) if losses else math.nan


def metrics_by_set(metrics: Mapping[str, Any], prefix: str, sets: Collection[str]) -> dict[str, dict[str, float]]:
    """Picks what `compute_metrics` gave out of the metrics of an evaluation.

    Args:
        metrics: What `evaluate` gives over a dict.
        prefix: What their names begin with.
        sets: Names of the evaluation sets.

    Returns:
        Metrics by name, for each set that has any: numbers, without loss and timings.
    """
    found: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        name, metric = _parted(key.removeprefix(f"{prefix}_"), sets)
        if name is not None and metric not in _OWN and isinstance(value, Real):
            found.setdefault(name, {})[metric] = float(value)
    return found


def recorded_weights(folder: Path, note: Mapping[str, Any]) -> dict[str, float] | None:
    """Reads the weights of evaluation sets out of what is noted of a run.

    Args:
        folder: The output folder of a trainer.
        note: The content of its `ledger.json`.

    Returns:
        Weights by name; `None` for the plain mean.

    Raises:
        ValueError: If what stands there are no such weights.
    """
    run = note.get("run")
    weights = run.get("eval_weights") if isinstance(run, Mapping) else None
    if weights is None:
        return None
    is_whole = isinstance(weights, dict) and all(
        isinstance(value, int | float) and 0 <= value < math.inf for value in weights.values()
    )
    if not is_whole:
        raise ValueError(f"{folder / 'ledger' / 'ledger.json'} is damaged: its eval_weights are {weights!r:.100}.")
    return {name: float(value) for name, value in weights.items()}


def _parted(key: str, sets: Collection[str]) -> tuple[str | None, str]:
    """Parts a key into set and metric, the longest set first: its name may begin with that of another."""
    places = [place for place, letter in enumerate(key) if letter == "_"]
    return next(((key[:place], key[place + 1 :]) for place in reversed(places) if key[:place] in sets), (None, key))
