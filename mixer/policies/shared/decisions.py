"""Decisions from factors on the streams' losses, and decisions with changed weights."""

from dataclasses import replace
from typing import Literal

import numpy as np

from mixer.policies.contract import Decision
from mixer.policies.shared.shares import share_out
from mixer.utils.arrays import BoolArray, FloatArray

ActsOn = Literal["sampling", "loss"]


def with_weights(decision: Decision, weights: FloatArray, active: BoolArray) -> Decision:
    """Replaces the sampling weights and keeps each stream's part of the gradient, weight times factor on the loss.

    A decision without factors on losses gets none, and its parts become the new weights.

    Args:
        decision: The policy's decision.
        weights: `[num_streams]` on the simplex: the new weights; positive for streams with a weight in the decision.
        active: bool `[num_streams]`: present streams; the mean factor over their samples stays.

    Returns:
        The new decision; the factor of a stream without a weight in the old decision becomes 0.
    """
    if decision.loss_weights is None:
        return replace(decision, weights=weights)
    shares = decision.weights / np.sum(decision.weights)
    ratios = np.divide(shares, weights, out=np.ones(len(weights)), where=weights > 0.0)
    moved = replace(decision, weights=weights, loss_weights=decision.loss_weights * ratios)
    return with_mean_factor(moved, mean_factor(decision, active), active)


def mean_factor(decision: Decision, active: BoolArray) -> float:
    """Returns the mean factor on the losses over the samples of a step.

    Args:
        decision: The decision for the step.
        active: bool `[num_streams]`: present streams, which take the shares of the others.

    Returns:
        The mean; 1 without factors, or if no present stream has a weight.
    """
    total = decision.weights[active].sum()
    if decision.loss_weights is None or not total > 0.0:
        return 1.0
    return float(decision.weights[active] @ decision.loss_weights[active] / total)


def with_mean_factor(decision: Decision, mean: float, active: BoolArray) -> Decision:
    """Scales the factors on the losses to a mean over the samples of a step.

    Args:
        decision: The decision for the step.
        mean: The wanted mean.
        active: bool `[num_streams]`: present streams.

    Returns:
        The scaled decision; unchanged without factors, or if they are all 0.
    """
    present = mean_factor(decision, active)
    if decision.loss_weights is None or not present > 0.0:
        return decision
    return replace(decision, loss_weights=decision.loss_weights * (mean / present))


def in_batch(weights: FloatArray, additional: FloatArray | None) -> FloatArray:
    """Sets the weights of streams with samples on top of the batch size to 0, without normalising.

    Args:
        weights: `[num_streams]`.
        additional: `[num_streams]`: samples on top of the batch size; `None` for none.
    """
    return weights if additional is None else weights * (additional <= 0.0)


def with_mean_one(factors: FloatArray, active: BoolArray) -> FloatArray:
    """Scales factors on the streams' losses to a mean of 1 over the present streams.

    The loss thus keeps its scale when a stream ends, however large its factor was.

    Args:
        factors: `[num_streams]`: 0 or more.
        active: bool `[num_streams]`: present streams.

    Returns:
        `[num_streams]`; 1 for the others.
    """
    scaled, largest = np.ones(len(factors)), factors[active].max(initial=0.0)
    if largest > 0.0:  # divided first: sums of the smallest numbers have no inverse
        scaled[active] = factors[active] / largest
        scaled[active] /= scaled[active].mean()
    return scaled


def decide(factors: FloatArray, own: FloatArray, active: BoolArray, acts_on: ActsOn) -> Decision:
    """Converts factors on the streams' losses to a decision.

    The expected gradient of a mixed batch is `Σ_k w_k f_k ∇L_k`, with sampling weights w and loss weights f. So
    sampling by `w_k ∝ own_k · factor_k` equals sampling by your weights and multiplying the losses by `f_k
    ∝ factor_k`. The latter are scaled to a mean of 1 over the samples, to keep the step size.

    Args:
        factors: `[num_streams]`: positive for a stream with a weight of its own.
        own: `[num_streams]` on the simplex: your weights.
        active: bool `[num_streams]`: present streams; the others keep their own weights and factor 1.
        acts_on: Target of the factors.
    """
    among = active & (own > 0)
    products = np.where(among, own * np.where(among, factors, 0.0), 0.0)
    total = products.sum()
    if acts_on == "sampling":
        return Decision(share_out(products / total, own, active, 0.0) if total > 0 else own)
    loss_weights = np.ones(len(own))
    if total > 0:
        loss_weights[among] = factors[among] * (own[among].sum() / total)
    return Decision(own, loss_weights)
