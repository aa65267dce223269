"""Decisions with other weights than a policy gave them."""

from dataclasses import replace

import numpy as np

from mixer.policies.base import Decision, FloatArray


def with_weights(decision: Decision, weights: FloatArray) -> Decision:
    """Samples by other weights, while each stream counts for as much of the gradient as the policy wants.

    That is weight times factor on the loss; a decision without factors on losses gets none, and counts by its weights.

    Args:
        decision: What the policy decides.
        weights: `[num_streams]` on the simplex: what to sample by; above 0 where the decision's weights are.

    Returns:
        The decision with these weights; the factor of a stream to which the policy gives no weight becomes 0.
    """
    if decision.loss_weights is None:
        return replace(decision, weights=weights)
    shares = decision.weights / np.sum(decision.weights)
    ratios = np.divide(shares, weights, out=np.ones(len(weights)), where=weights > 0.0)
    return replace(decision, weights=weights, loss_weights=decision.loss_weights * ratios)


def in_batch(weights: FloatArray, additional: FloatArray | None) -> FloatArray:
    """Takes the weight from streams that have samples on top of the batch size: they must have none.

    Args:
        weights: `[num_streams]`.
        additional: `[num_streams]`: samples on top of the batch size; `None` for none.

    Returns:
        `[num_streams]`, not normalised anew.
    """
    return weights if additional is None else weights * (additional <= 0.0)
