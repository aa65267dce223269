"""What a loop of one's own reports on a batch."""

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
    """What a batch showed; NaN where something was not measured.

    Args:
        losses: `[num_streams]`: mean loss of each stream.
        tokens: int64 `[num_streams]`: tokens of each stream.
        loss: Mean loss over all streams.
        gradient_norm: Norm of the gradient before clipping.
        learning_rate: Factor of the learning-rate schedule for the next batch.
        gradients: The streams' gradients, or `None`.
        update_norm: How far the optimizer step moved the parameters.
        excess_losses: `[num_streams]`: mean per item of what the loss exceeds that of a reference model; `None` where
            nobody measured it, as below.
        losses_after: `[num_streams]`: mean loss of each stream once more after the optimizer step.
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

    def lacking(
        self,
        policy_needs: frozenset[str],
        schedule_needs: frozenset[str],
        is_policy_due: bool,
        is_schedule_due: bool,
    ) -> list[str]:
        """Says what of the things that are needed was not reported.

        Args:
            policy_needs: What the policy needs.
            schedule_needs: What the batch-size schedule needs.
            is_policy_due: Whether gradients, where the policy needs them, are due after this batch.
            is_schedule_due: The same for the schedule.

        Returns:
            Names, of those that can be reported and are no counts.
        """
        measured = {"loss": self.loss, "gradient_norm": self.gradient_norm, "learning_rate": self.learning_rate}
        lacking = {name for name in schedule_needs & measured.keys() if math.isnan(measured[name])}
        if "loss" in policy_needs and np.isnan(self.losses).all():
            lacking.add("losses")
        for need, name in (("excess_loss", "excess_losses"), ("loss_after", "losses_after")):
            values = getattr(self, name)
            if need in policy_needs and (values is None or np.isnan(values).all()):
                lacking.add(name)
        if "update_norm" in policy_needs and math.isnan(self.update_norm):
            lacking.add("update_norm")
        needs_gradients = policy_needs & {"gradient", "gradient_variance"} if is_policy_due else set()
        if self.gradients is None and (needs_gradients or (is_schedule_due and "gradient_noise" in schedule_needs)):
            lacking.add("gradients")
        return sorted(lacking)


def make_reported(
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
    """Brings what a user reports into order.

    Args:
        names: Names of the streams.
        losses: Mean losses; those that are not finite count as none.
        tokens: Numbers of tokens; 0 where there are none.
        loss: Mean loss over all streams; of a single stream it is the same as `losses`, and either is enough.
        gradient_norm: See `Reported`.
        learning_rate: See `Reported`.
        gradients: See `Reported`.
        update_norm: See `Reported`.
        excess_losses: See `Reported`; those that are not finite count as none, as below.
        losses_after: See `Reported`.

    Returns:
        The report.

    Raises:
        ValueError: If numbers do not fit the streams; what and which is named.
        TypeError: If the gradients are something else.
    """
    mean, is_single = _number(loss), len(names) == 1
    values = _finite("losses", mean if losses is None and is_single else losses, names)
    others = [
        None if given is None else _finite(where, given, names)
        for where, given in (("excess_losses", excess_losses), ("losses_after", losses_after))
    ]
    if math.isnan(mean) and is_single:
        mean = float(values[0])
    if not isinstance(gradients, GradientStatistics | None):
        raise TypeError(
            f"observe: gradients must be what GradientProbe.finish() gives, got a {type(gradients).__name__}."
        )
    if gradients is not None and len(gradients.counts) != len(names):
        raise ValueError(
            f"observe: gradients must be of the streams {list(names)}, got those of {len(gradients.counts)} streams."
        )
    counts = _by_stream("tokens", tokens, names, 0.0).astype(np.int64)
    numbers = (mean, _number(gradient_norm), _number(learning_rate))
    return StepReport(values, counts, *numbers, gradients, _number(update_norm), *others)


def _finite(where: str, given: ByStream | None, names: Sequence[str]) -> FloatArray:
    values = _by_stream(where, given, names, math.nan)
    values[~np.isfinite(values)] = math.nan
    return values


def _by_stream(where: str, given: ByStream | None, names: Sequence[str], missing: float) -> FloatArray:
    if given is None:
        return np.full(len(names), missing)
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise ValueError(f"observe: {where} has {unknown}, but the streams are {list(names)}.")
        return np.array([_number(given.get(name, missing)) for name in names])
    values = [_number(value) for value in given] if isinstance(given, Sequence | np.ndarray) else [_number(given)]
    if len(values) != len(names):
        raise ValueError(f"observe: {where} must have one number for each of {list(names)}, got {len(values)}.")
    return np.array(values)


def _number(value: SupportsFloat) -> float:
    """Takes losses as they come out of a model: torch warns of `float` where a gradient hangs on a tensor."""
    return float(value.item() if isinstance(value, torch.Tensor) else value)
