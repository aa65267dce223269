"""Aggregates over all evaluation sets, identical in logs, best-model selection and comparisons."""

import math
from collections.abc import Collection, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from mixer.policies.contract import weights_array
from mixer.policies.objective import Objective
from mixer.utils.errors import InvalidValueError, wrong_type, wrong_value

# The Trainer's own evaluation metrics, beside those of `compute_metrics`.
_OWN = frozenset(
    {"loss", "runtime", "samples_per_second", "steps_per_second", "tokens_per_second"}
    | {"model_preparation_time", "jit_compilation_time"}
)


def check_eval_weights(weights: Mapping[str, float] | None, eval_dataset: Any) -> None:
    """Refuses weights that do not match the evaluation sets.

    Args:
        weights: `eval_weights`, or `None`.
        eval_dataset: Evaluation data.

    Raises:
        ValueError: If the data are not a dict, a set is missing or unknown, or weights are invalid.
        TypeError: If the weights are not a mapping.
    """
    if weights is None:
        return
    if not isinstance(weights, Mapping):
        raise wrong_type("eval_weights", f"must be a mapping of evaluation sets to numbers, got {weights!r}.")
    sets = list(eval_dataset) if isinstance(eval_dataset, Mapping) else None
    if sets is None or weights.keys() != set(sets):
        state = "is not a dict" if sets is None else f"has the sets {sets}"
        raise wrong_value("eval_weights", f"names {list(weights)}, but eval_dataset {state}: set one weight per set.")
    weights_array(weights, sets, "eval_weights")


def mean_loss(losses: Mapping[str, float], weights: Mapping[str, float] | None = None) -> float:
    """Averages the losses of evaluation sets: `eval_loss`.

    Args:
        losses: Losses by set.
        weights: `eval_weights`; `None` for the plain mean.

    Returns:
        Mean, NaN without sets. It is unweighted if a set has no weight, or none has a positive one. Sets of weight 0
        are ignored, whatever their loss.
    """
    if not losses:
        return math.nan
    values, shares = np.array(list(losses.values()), dtype=np.float64), np.ones(len(losses))
    if weights is not None and losses.keys() <= weights.keys() and any(weights[name] for name in losses):
        shares = np.array([weights[name] for name in losses], dtype=np.float64)
    return float((values * shares)[shares > 0].sum() / shares.sum())


def worst_loss(losses: Mapping[str, float]) -> float:
    """Returns the maximum loss of evaluation sets, `eval_worst_loss`; NaN without sets, or if any loss is NaN."""
    return float(np.max(list(losses.values()))) if losses else math.nan


def mean_metrics(
    by_set: Mapping[str, Mapping[str, float]], sets: Collection[str], weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Averages each metric that all evaluation sets have, as `mean_loss` does losses: `eval_mean_METRIC`.

    Args:
        by_set: Results of `compute_metrics` by evaluation set and name.
        sets: Names of the evaluation sets.
        weights: `eval_weights`; `None` for the plain mean.

    Example:
        >>> mean_metrics({"a": {"accuracy": 0.5, "f1": 0.4}, "b": {"accuracy": 1.0}}, ["a", "b"])
        {'accuracy': 0.75}
    """
    found = [by_set.get(name, {}) for name in sets]
    shared = [metric for metric in found[0] if all(metric in own for own in found)] if found else []
    return {metric: mean_loss({name: by_set[name][metric] for name in sets}, weights) for metric in shared}


def metrics_by_set(metrics: Mapping[str, Any], prefix: str, sets: Collection[str]) -> dict[str, dict[str, float]]:
    """Extracts the results of `compute_metrics` from evaluation metrics.

    Args:
        metrics: Result of `evaluate` on a dict.
        prefix: Prefix of the names.
        sets: Names of the evaluation sets.

    Returns:
        Numeric metrics by set and name, without loss and timings.
    """
    by_set: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        name, metric = _parted(key.removeprefix(f"{prefix}_"), sets)
        if name is not None and metric not in _OWN and isinstance(value, Real):
            by_set.setdefault(name, {})[metric] = float(value)
    return by_set


def recorded_weights(folder: Path, note: Mapping[str, Any]) -> dict[str, float] | None:
    """Returns the recorded weights of evaluation sets by name; `None` for the plain mean.

    Args:
        folder: Output folder of a trainer.
        note: Content of its `ledger.json`.

    Raises:
        ValueError: If the recorded weights are invalid.
    """
    weights = _recorded(note, "eval_weights")
    if weights is None:
        return None
    is_valid = isinstance(weights, dict) and all(
        isinstance(value, int | float) and 0 <= value < math.inf for value in weights.values()
    )
    if not is_valid:
        text = f"{folder / 'ledger' / 'ledger.json'} is damaged: its eval_weights are {weights!r:.100}."
        raise InvalidValueError(text, option="eval_weights")
    return {name: float(value) for name, value in weights.items()}


def recorded_objective(folder: Path, note: Mapping[str, Any]) -> Objective | None:
    """Returns the recorded objective of a run; `None` if it declared none.

    Args:
        folder: Output folder of a trainer.
        note: Content of its `ledger.json`.

    Raises:
        ValueError: If the recorded objective is invalid.
    """
    content = _recorded(note, "objective")
    if content is None:
        return None
    try:
        return Objective(**content)
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"{folder / 'ledger' / 'ledger.json'} is damaged: its objective is {content!r:.100}.", option="objective"
        ) from None


def _recorded(note: Mapping[str, Any], name: str) -> Any:
    """Returns an entry of a run's description; `None` without it."""
    run = note.get("run")
    return run.get(name) if isinstance(run, Mapping) else None


def _parted(key: str, sets: Collection[str]) -> tuple[str | None, str]:
    """Splits a key into set and metric, trying long set names first: a set's name may start with another's."""
    places = [place for place, letter in enumerate(key) if letter == "_"]
    return next(((key[:place], key[place + 1 :]) for place in reversed(places) if key[:place] in sets), (None, key))
