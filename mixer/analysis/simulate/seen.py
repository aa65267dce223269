"""What a simulated step shows, in place of what a model would."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mixer.mixture.plan import Plan
from mixer.policies import Policy
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.schedules import Schedule
from mixer.utils.arrays import FloatArray, Int64Array

# What is planned, and needs no model.
PLANNED = frozenset({"tokens", "learning_rate"})


@dataclass(frozen=True)
class Seen:
    """What a step shows, as `Mixing.observe` takes it.

    Args:
        losses: `[num_streams]`: mean loss per item, NaN where there is none.
        loss: Mean loss over all streams.
        gradient_norm: Norm of the gradient before clipping.
        gradients: The streams' gradients, where they are measured.
        update_norm: How far the step moves the parameters.
        excess_losses: `[num_streams]`: losses above those of a reference model, or `None`.
        losses_after: `[num_streams]`: losses after the optimizer step, or `None`.
    """

    losses: FloatArray
    loss: float = math.nan
    gradient_norm: float = math.nan
    gradients: GradientStatistics | None = None
    update_norm: float = math.nan
    excess_losses: FloatArray | None = None
    losses_after: FloatArray | None = None


class Source(Protocol):
    """Where what simulated steps show comes from."""

    @property
    def note(self) -> str:
        """What it is, in a sentence."""

    def after(self, plan: Plan, seen: Int64Array, tokens: Int64Array) -> Seen:
        """Gives what a step shows.

        Args:
            plan: Its plan.
            seen: int64 `[num_streams]`: samples so far, those of the plan among them.
            tokens: int64 `[num_streams]`: its tokens.
        """

    def evaluation(self, step: int, seen: Int64Array) -> Mapping[str, float]:
        """Gives the losses of an evaluation by stream.

        Args:
            step: Number of steps done.
            seen: int64 `[num_streams]`: samples so far.
        """


class Nothing:
    """Shows nothing: for mixtures that go by nothing."""

    note = "Nothing is observed, and nothing needs to be: the plans are those of the trained run."

    def after(self, plan: Plan, seen: Int64Array, tokens: Int64Array) -> Seen:
        """Shows nothing; see `Source.after`."""
        return Seen(np.full(len(plan.counts), np.nan))

    def evaluation(self, step: int, seen: Int64Array) -> Mapping[str, float]:
        """Shows nothing; see `Source.evaluation`."""
        return {}


def needs_of(policy: Policy, schedule: Schedule) -> frozenset[str]:
    """Lists what has to be observed that only a trained model shows.

    Args:
        policy: The mixing policy.
        schedule: The batch-size schedule.

    Returns:
        What either needs, but for what is planned.
    """
    return (policy.needs | schedule.needs) - PLANNED


def mean_loss(losses: FloatArray, counts: Int64Array, tokens: Int64Array) -> float:
    """Gives the mean loss of a step, by tokens where there are any.

    Args:
        losses: `[num_streams]`.
        counts: int64 `[num_streams]`: samples.
        tokens: int64 `[num_streams]`.

    Returns:
        The mean; NaN where no loss is known.
    """
    amounts = np.where(np.isfinite(losses), tokens if tokens.any() else counts, 0)
    return float(np.nansum(losses * amounts) / amounts.sum()) if amounts.any() else math.nan
