"""Reports of a loop of your own on its last batch, for adaptive policies and schedules."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np
import torch

from mixer.policies.gradient_statistics import GradientStatistics
from mixer.utils.arrays import FloatArray, Int64Array

# By name, in order, or one number for a single stream.
ByStream = Mapping[str, SupportsFloat] | Sequence[SupportsFloat] | FloatArray | SupportsFloat


@dataclass(frozen=True)
class StepReport:
    """Measurements of a batch; NaN if not measured.

    Args:
        losses: `[num_streams]`: mean loss of each stream.
        tokens: int64 `[num_streams]`: tokens of each stream.
        loss: Mean loss over all streams.
        gradient_norm: Norm of the gradient before clipping.
        learning_rate: Factor of the learning-rate schedule for the next batch.
        gradients: Gradient statistics of the streams, or `None`.
        update_norm: Norm of the parameter change by the optimizer step.
        excess_losses: `[num_streams]`: mean excess loss per item over a reference model, or `None`.
        losses_after: `[num_streams]`: mean loss of each stream after the optimizer step, or `None`.
    """

    losses: FloatArray
    tokens: Int64Array
    loss: float = math.nan
    gradient_norm: float = math.nan
    learning_rate: float = math.nan
    gradients: GradientStatistics | None = None
    update_norm: float = math.nan
    excess_losses: FloatArray | None = None
    losses_after: FloatArray | None = None

    def missing_for(
        self,
        policy_needs: frozenset[str],
        schedule_needs: frozenset[str],
        is_policy_due: bool,
        is_schedule_due: bool,
    ) -> list[str]:
        """Names the observations that are missing.

        Args:
            policy_needs: Needs of the policy.
            schedule_needs: Needs of the batch-size schedule.
            is_policy_due: Whether the policy needs gradients after this batch, if it needs any.
            is_schedule_due: The same for the schedule.
        """
        missing = {
            name
            for name in schedule_needs & {"loss", "gradient_norm", "learning_rate"}
            if math.isnan(getattr(self, name))
        }
        for need in ("loss", "excess_loss", "loss_after", "update_norm"):
            name = {"loss": "losses", "excess_loss": "excess_losses", "loss_after": "losses_after"}.get(need, need)
            values = getattr(self, name)
            if need in policy_needs and (values is None or np.isnan(values).all()):
                missing.add(name)
        needs_gradients = policy_needs & {"gradient", "gradient_variance"} if is_policy_due else set()
        if self.gradients is None and (needs_gradients or (is_schedule_due and "gradient_noise" in schedule_needs)):
            missing.add("gradients")
        return sorted(missing)


def make_report(
    names: Sequence[str],
    losses: ByStream | None = None,
    tokens: ByStream | None = None,
    loss: SupportsFloat = math.nan,
    gradient_norm: SupportsFloat = math.nan,
    learning_rate: SupportsFloat = math.nan,
    gradients: GradientStatistics | None = None,
    update_norm: SupportsFloat = math.nan,
    excess_losses: ByStream | None = None,
    losses_after: ByStream | None = None,
) -> StepReport:
    """Validates a user's report; see `StepReport`.

    With a single stream, `loss` and `losses` are the same and either is enough. Losses that are not finite count as
    not measured, missing tokens as 0.

    Raises:
        ValueError: If values do not match the streams.
        TypeError: If the gradients have the wrong type.
    """
    mean, is_single = _number(loss), len(names) == 1
    values = _finite("losses", mean if losses is None and is_single else losses, names)
    if math.isnan(mean) and is_single:
        mean = float(values[0])
    if not isinstance(gradients, GradientStatistics | None):
        raise TypeError(
            f"observe: gradients must be the result of GradientProbe.finish(), got a {type(gradients).__name__}."
        )
    if gradients is not None and len(gradients.counts) != len(names):
        raise ValueError(
            f"observe: gradients must cover the streams {list(names)}, got {len(gradients.counts)} streams."
        )
    return StepReport(
        values,
        _by_stream("tokens", tokens, names, 0.0).astype(np.int64),
        mean,
        _number(gradient_norm),
        _number(learning_rate),
        gradients,
        _number(update_norm),
        None if excess_losses is None else _finite("excess_losses", excess_losses, names),
        None if losses_after is None else _finite("losses_after", losses_after, names),
    )


def _finite(argument: str, values: ByStream | None, names: Sequence[str]) -> FloatArray:
    numbers = _by_stream(argument, values, names, math.nan)
    numbers[~np.isfinite(numbers)] = math.nan
    return numbers


def _by_stream(argument: str, values: ByStream | None, names: Sequence[str], missing: float) -> FloatArray:
    if values is None:
        return np.full(len(names), missing)
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if isinstance(values, Mapping):
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise ValueError(f"observe: {argument} has {unknown}, but the streams are {list(names)}.")
        return np.array([_number(values.get(name, missing)) for name in names])
    numbers = [_number(value) for value in values] if isinstance(values, Sequence | np.ndarray) else [_number(values)]
    if len(numbers) != len(names):
        raise ValueError(f"observe: {argument} must have one number for each of {list(names)}, got {len(numbers)}.")
    return np.array(numbers)


def _number(value: SupportsFloat) -> float:
    """Converts a model's loss: torch warns if `float` is called on a tensor that requires grad."""
    return float(value.item() if isinstance(value, torch.Tensor) else value)
