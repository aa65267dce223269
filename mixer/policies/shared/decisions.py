"""Decisions with other weights than a policy gave them."""

from dataclasses import replace

import numpy as np

from mixer.policies.contract import Decision
from mixer.utils.arrays import BoolArray, FloatArray


def with_weights(decision: Decision, weights: FloatArray, active: BoolArray) -> Decision:
    """Samples by other weights, while each stream counts for as much of the gradient as the policy wants.

    That is weight times factor on the loss; a decision without factors on losses gets none, and counts by its weights.

    Args:
        decision: What the policy decides.
        weights: `[num_streams]` on the simplex: what to sample by; above 0 where the decision's weights are.
        active: bool `[num_streams]`: which streams are there: over their samples the mean factor stays.

    Returns:
        The decision with these weights; the factor of a stream to which the policy gives no weight becomes 0.
    """
    if decision.loss_weights is None:
        return replace(decision, weights=weights)
    shares = decision.weights / np.sum(decision.weights)
    ratios = np.divide(shares, weights, out=np.ones(len(weights)), where=weights > 0.0)
    moved = replace(decision, weights=weights, loss_weights=decision.loss_weights * ratios)
    return with_mean_factor(moved, mean_factor(decision, active), active)


def mean_factor(decision: Decision, active: BoolArray) -> float:
    """Gives the mean factor on the losses over the samples of a step.

    Args:
        decision: What rules it.
        active: bool `[num_streams]`: which streams are there, and share out the weights of the others.

    Returns:
        The mean; 1 without factors, or where no stream that is there has a weight.
    """
    total = decision.weights[active].sum()
    if decision.loss_weights is None or not total > 0.0:
        return 1.0
    return float(decision.weights[active] @ decision.loss_weights[active] / total)


def with_mean_factor(decision: Decision, mean: float, active: BoolArray) -> Decision:
    """Scales the factors on the losses.

    Args:
        decision: What rules a step.
        mean: What the mean factor over its samples shall be.
        active: bool `[num_streams]`: which streams are there.

    Returns:
        The decision with scaled factors; as it is without any, or where they are 0 throughout.
    """
    present = mean_factor(decision, active)
    if decision.loss_weights is None or not present > 0.0:
        return decision
    return replace(decision, loss_weights=decision.loss_weights * (mean / present))


def in_batch(weights: FloatArray, additional: FloatArray | None) -> FloatArray:
    """Takes the weight from streams that have samples on top of the batch size: they must have none.

    Args:
        weights: `[num_streams]`.
        additional: `[num_streams]`: samples on top of the batch size; `None` for none.

    Returns:
        `[num_streams]`, not normalised anew.
    """
    return weights if additional is None else weights * (additional <= 0.0)
