"""Evaluation sets: their names, and the metrics and weights that are given for them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from mixer.ledger.evaluated_losses import check_eval_weights
from mixer.mixture.stream import is_dataset


def check_sets(
    metrics_by_set: Mapping[str, Callable[..., Any]] | None, eval_weights: Mapping[str, float] | None, sets: Any
) -> None:
    """Refuses metrics and weights of evaluation sets that do not exist.

    Args:
        metrics_by_set: The option `compute_metrics` as a dict, or `None`.
        eval_weights: The option `eval_weights`, or `None`.
        sets: The evaluation sets.

    Raises:
        ValueError: With the sets.
    """
    if metrics_by_set is not None:
        _check_metrics(metrics_by_set, sets)
    check_eval_weights(eval_weights, sets)


def _check_metrics(metrics: Mapping[str, Any], eval_dataset: Any) -> None:
    """Refuses metrics for evaluation sets that do not exist.

    Args:
        metrics: Functions by evaluation set.
        eval_dataset: Evaluation data of the trainer.

    Raises:
        ValueError: If the evaluation data are not a dict, or lack a named set.
        TypeError: If a metric is not a function.
    """
    sets = list(eval_dataset) if isinstance(eval_dataset, Mapping) else None
    unknown = [name for name in metrics if sets is None or name not in sets]
    if unknown:
        state = "is not a dict" if sets is None else f"has the sets {sets}"
        raise ValueError(f"compute_metrics names the evaluation sets {unknown}, but eval_dataset {state}.")
    for name, function in metrics.items():
        if not callable(function):
            raise TypeError(f"compute_metrics[{name!r}] must be a function, got {function!r}.")


def check_evaluation_names(eval_dataset: Any) -> None:
    """Refuses unnamed evaluation sets, and reserved names.

    Args:
        eval_dataset: Evaluation data of the trainer.

    Raises:
        ValueError: If a set is called `"worst"` or `"mean"`.
        TypeError: If they are a list of datasets or streams.
    """
    if isinstance(eval_dataset, (list, tuple)) and eval_dataset and is_dataset(eval_dataset[0]):
        raise TypeError(
            f"eval_dataset is a list of {len(eval_dataset)} datasets: use a dict of them by name, such as "
            '{"math": math_dev, "code": code_dev}.'
        )
    for name, entry in {"worst": "eval_worst_loss", "mean": "eval_mean_METRIC, means over the sets"}.items():
        if isinstance(eval_dataset, dict) and name in eval_dataset:
            raise ValueError(f"eval_dataset: the name {name!r} is reserved for {entry}; rename the set.")


def checking_metrics(compute_metrics: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a function that computes metrics and refuses what a run cannot log or write to its checkpoints.

    Args:
        compute_metrics: The user's function.
        name: The evaluation set; empty if it has no name.
    """

    @functools.wraps(compute_metrics)
    def checked(*args: Any, **kwargs: Any) -> Any:
        found = compute_metrics(*args, **kwargs)
        if not kwargs.get("compute_result", True):  # between batches only
            return found
        called = f"compute_metrics of the evaluation set {name!r}" if name else "compute_metrics"
        if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
            raise TypeError(f"{called} must return a dict of numbers by name, got {_shown(found)}.")
        for metric, value in found.items():
            if (isinstance(value, Tensor) and value.numel() != 1) or isinstance(value, np.ndarray):
                raise TypeError(
                    f"{called} must return a dict of numbers by name, but {metric!r} is {_shown(value)}, which "
                    "checkpoints cannot hold: return a number, such as float(...), or a list (.tolist())."
                )
        return found

    return checked


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{value!r:.100}" if shape is None else f"a {type(value).__name__} of shape {list(shape)}"
