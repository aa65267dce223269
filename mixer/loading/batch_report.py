"""Reports of a loop of your own on its last batch, for adaptive policies and schedules."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import numpy as np
import torch

import mixer.measurements as measurements
from mixer.policies.contract import Policy
from mixer.schedules.base import Schedule
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_type, wrong_value
from mixer.utils.text import safe_names

# By name, in order, or one number for a single stream.
StreamValues = Mapping[str, SupportsFloat] | Sequence[SupportsFloat] | FloatArray | SupportsFloat


def make_report(
    names: Sequence[str], losses: StreamValues | None, loss: SupportsFloat, measured: measurements.Results
) -> dict[type[measurements.Measurement[Any]], Any]:
    """Validates a user's measurements of a batch; those that are not finite count as not measured.

    With a single stream, `loss` and `losses` are the same and either is enough.

    Args:
        names: Stream names.
        losses: Mean loss of each stream, or `None`.
        loss: Mean loss of the batch, NaN if not measured.
        measured: All others, by the class of their request.

    Raises:
        ValueError: If values do not match the streams.
        TypeError: If the gradients have the wrong type.
    """
    own, whole = as_numbers("losses", losses, names), as_number(loss)
    if len(names) == 1 and losses is None:
        own = as_numbers("losses", whole, names)
    elif len(names) == 1 and math.isnan(whole):
        whole = float(own[0])
    found = {kind: _checked(kind, result, names) for kind, result in measured.items() if result is not None}
    return {**measurements.reported_losses(own, whole), **found}


def _checked(kind: object, result: Any, names: Sequence[str]) -> Any:
    if not (isinstance(kind, type) and issubclass(kind, measurements.Measurement)):
        text = f": measured has results by the class of a measurement (mixer.measurements), not {kind!r}."
        raise wrong_type("observe", text)
    if issubclass(kind, measurements.ByStream):
        return as_numbers(kind.__name__, result, names)
    return kind.reported(as_number(result) if isinstance(result, torch.Tensor | np.generic) else result, names)


def find_missing(
    report: measurements.Results, step: int, policy: Policy, schedule: Schedule, is_evaluation_due: bool
) -> list[str]:
    """Names the measurements that policy or batch-size schedule need after a step and that a report lacks."""
    needs = [need for need in (*policy.needs, *schedule.needs) if not step % (getattr(need, "interval_steps", 0) or 1)]
    kinds = {need.shown_by or type(need) for need in needs if is_evaluation_due or "evaluations" not in need.requires}
    return sorted(kind.__name__ for kind in kinds if _is_unknown(report.get(kind)))


def _is_unknown(result: Any) -> bool:
    return result is None or (isinstance(result, float | np.ndarray) and bool(np.isnan(result).all()))


def as_numbers(argument: str, values: StreamValues | None, names: Sequence[str]) -> FloatArray:
    """Returns a user's numbers of the streams in their order; NaN where there is none, and 0 for tokens and labels."""
    missing = 0.0 if argument in ("tokens", "labels") else math.nan
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if isinstance(values, Mapping | None):
        by_name = safe_names(values or {}, argument)
        unknown = sorted(set(by_name) - set(names))
        if unknown:
            raise wrong_value("observe", f": {argument} has {unknown}, but the streams are {list(names)}.")
        values = [by_name.get(name, missing) for name in names]
    numbers = (
        [as_number(value) for value in values] if isinstance(values, Sequence | np.ndarray) else [as_number(values)]
    )
    if len(numbers) != len(names):
        raise wrong_value(
            "observe", f": {argument} must have one number for each of {list(names)}, got {len(numbers)}."
        )
    result = np.array(numbers)
    result[~np.isfinite(result)] = math.nan
    return result


def as_number(value: SupportsFloat) -> float:
    """Converts a model's loss: torch warns if `float` is called on a tensor that requires grad."""
    return float(value.item() if isinstance(value, torch.Tensor) else value)
