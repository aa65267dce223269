"""What a policy and a schedule saw after a step, rebuilt from the ledger."""

import math

import numpy as np

from mixer.ledger.recorded_run import RecordedRun
from mixer.policies.contract import Observation
from mixer.schedules import BatchObservation, GradientNoise
from mixer.utils.arrays import FloatArray


def observation_after(
    run: RecordedRun,
    row: int,
    needs: frozenset[str],
    tokens_per_sample: FloatArray | None,
    evaluation_losses: FloatArray | None,
) -> Observation:
    """Rebuilds what a policy saw after a step.

    Args:
        run: The run.
        row: The row of the step.
        needs: What the policy needs.
        tokens_per_sample: `[num_streams]`: mean so far, where the policy's unit is tokens.
        evaluation_losses: `[num_streams]`: losses of an evaluation since the step before, or `None`.

    Returns:
        The observation: what `Mixing` made for the policy.
    """
    streams, clock, step = run.streams, run.clock, int(run.steps[row])
    shares = streams["weight"][row]
    if tokens_per_sample is not None:
        shares = shares * tokens_per_sample / (shares @ tokens_per_sample)
    losses = streams["loss"][row] if "loss" in needs else np.full(len(run.names), np.nan)
    compared = {
        name: run.compared[name][row] if name in run.compared else None for name in ("excess_loss", "loss_after")
    }
    return Observation(
        step=step,
        progress=float(clock["progress"][row]),
        weights=streams["policy_weight"][row],
        counts=streams["count"][row],
        tokens=streams["tokens"][row],
        seen=streams["seen"][row].copy(),
        losses=losses.copy(),
        evaluation_losses=evaluation_losses,
        gradients=run.gradients.get(step),
        shares=shares.copy(),
        batch_size=int(clock["batch_size"][row]),
        excess_losses=compared["excess_loss"] if "excess_loss" in needs else None,
        losses_after=compared["loss_after"] if "loss_after" in needs else None,
        update_norm=float(clock["update_norm"][row]),
        active=streams["active"][row].copy(),
        tokens_per_sample=tokens_per_sample,
    )


def batch_observation_after(run: RecordedRun, row: int, needs: frozenset[str]) -> BatchObservation:
    """Rebuilds what a batch-size schedule saw after a step.

    Args:
        run: The run.
        row: The row of the step.
        needs: What the schedule needs.

    Returns:
        The observation, without the learning rate, whose peak the ledger does not say.
    """
    clock, step = run.clock, int(run.steps[row])
    measured = run.gradients.get(step)
    noise = None if measured is None else GradientNoise(*measured.noise)
    is_known = noise is not None and math.isfinite(noise.squared_norm) and math.isfinite(noise.variance)
    return BatchObservation(
        step=step,
        progress=float(clock["progress"][row]),
        num_epochs_done=math.floor(clock["epoch"][row]),
        num_samples=int(clock["samples"][row]),
        num_tokens=int(clock["tokens"][row]),
        batch_size=int(clock["batch_size"][row]),
        loss=float(clock["loss"][row]) if "loss" in needs else math.nan,
        gradient_norm=float(clock["gradient_norm"][row]) if "gradient_norm" in needs else math.nan,
        noise=noise if is_known else None,
    )
