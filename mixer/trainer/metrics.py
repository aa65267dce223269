"""Metrics of evaluations: what `compute_metrics` returns, and which value chooses the best model."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from transformers import Trainer
from transformers.utils import logging

_PREFIX = "eval_"
logger = logging.get_logger(__name__)


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


def is_best(
    trainer: Trainer, determine: Callable[..., bool], metrics: Mapping[str, float], trial: Any, told: set[str]
) -> bool:
    """Says whether an evaluation is the best so far; one whose metric is not finite never is.

    Args:
        trainer: The trainer.
        determine: The Trainer's own decision.
        metrics: The metrics of the evaluation.
        trial: The trial of a search, or `None`.
        told: Metrics that were told not to be finite; this one is added.
    """
    metric = trainer.args.metric_for_best_model or ""
    key = metric if metric.startswith(_PREFIX) else _PREFIX + metric
    if math.isfinite(metrics.get(key, 0.0)):
        return determine(metrics, trial)
    if key not in told and trainer.is_world_process_zero():
        logger.warning(
            "metric_for_best_model=%r is %s in step %d: it is not compared. The best model is that of evaluations "
            "where it is finite; without any, none is chosen.",
            *(metric, metrics[key], trainer.state.global_step),
        )
    told.add(key)
    return False
