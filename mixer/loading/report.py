"""Reports of a loop of your own on its last batch, for adaptive policies and schedules."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import numpy as np
import torch

from mixer.policies.contract import Policy
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.schedules.base import Schedule
from mixer.utils.arrays import FloatArray

# By name, in order, or one number for a single stream.
ByStream = Mapping[str, SupportsFloat] | Sequence[SupportsFloat] | FloatArray | SupportsFloat
# Measurements by stream that are `None` if missing, and all needs of policies by the name of their measurement.
_OPTIONAL = {"excess_loss": "excess_losses", "loss_after": "losses_after"}
_MEASUREMENTS = {"loss": "losses", "update_norm": "update_norm", **_OPTIONAL}


def make_report(
    names: Sequence[str],
    by_stream: Mapping[str, ByStream | None],
    numbers: Mapping[str, SupportsFloat],
    gradients: GradientStatistics | None = None,
) -> dict[str, Any]:
    """Validates a user's measurements of a batch, named as in `Standalone.observe`.

    With a single stream, `loss` and `losses` are the same and either is enough. Losses that are not finite count as
    not measured, missing tokens as 0.

    Args:
        names: Stream names.
        by_stream: Measurements of each stream, or `None`.
        numbers: Measurements of the batch, NaN if not measured.
        gradients: Gradient statistics of the streams.

    Raises:
        ValueError: If values do not match the streams.
        TypeError: If the gradients have the wrong type.
    """
    report: dict[str, Any] = {name: _number(value) for name, value in numbers.items()}
    for name, values in by_stream.items():
        is_missing = values is None and name in _OPTIONAL.values()
        report[name] = None if is_missing else _by_stream(name, values, names)
    if len(names) == 1 and by_stream["losses"] is None:
        report["losses"] = _by_stream("losses", report["loss"], names)
    elif len(names) == 1 and math.isnan(report["loss"]):
        report["loss"] = float(report["losses"][0])
    if not isinstance(gradients, GradientStatistics | None):
        raise TypeError(
            f"observe: gradients must be the result of GradientProbe.finish(), got a {type(gradients).__name__}."
        )
    if gradients is not None and len(gradients.counts) != len(names):
        raise ValueError(
            f"observe: gradients must cover the streams {list(names)}, got {len(gradients.counts)} streams."
        )
    return {**report, "gradients": gradients}


def find_missing(report: Mapping[str, Any], step: int, policy: Policy, schedule: Schedule) -> list[str]:
    """Names the measurements that policy or batch-size schedule need after a step and that a report lacks."""
    required = {name for need, name in _MEASUREMENTS.items() if need in policy.needs}
    required |= schedule.needs & {"loss", "gradient_norm", "learning_rate"}
    missing = {name for name in required if report[name] is None or np.isnan(report[name]).all()}
    needs_gradients = [
        not step % control.interval_steps and bool(control.needs & {"gradient", "gradient_variance", "gradient_noise"})
        for control in (policy, schedule)
    ]
    return sorted(missing | ({"gradients"} if any(needs_gradients) and report["gradients"] is None else set()))


def _by_stream(argument: str, values: ByStream | None, names: Sequence[str]) -> FloatArray:
    missing = 0.0 if argument == "tokens" else math.nan
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if isinstance(values, Mapping | None):
        by_name = values or {}
        unknown = sorted(set(by_name) - set(names))
        if unknown:
            raise ValueError(f"observe: {argument} has {unknown}, but the streams are {list(names)}.")
        values = [by_name.get(name, missing) for name in names]
    numbers = [_number(value) for value in values] if isinstance(values, Sequence | np.ndarray) else [_number(values)]
    if len(numbers) != len(names):
        raise ValueError(f"observe: {argument} must have one number for each of {list(names)}, got {len(numbers)}.")
    result = np.array(numbers)
    if argument == "tokens":
        return result.astype(np.int64)
    result[~np.isfinite(result)] = math.nan
    return result


def _number(value: SupportsFloat) -> float:
    """Converts a model's loss: torch warns if `float` is called on a tensor that requires grad."""
    return float(value.item() if isinstance(value, torch.Tensor) else value)
