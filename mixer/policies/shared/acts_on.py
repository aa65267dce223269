"""What factors on the streams' losses act on: the losses, or how much of each stream is sampled."""

from typing import Literal

import numpy as np

from mixer.policies.contract import Decision
from mixer.policies.shared.least_share import share_out
from mixer.utils.arrays import BoolArray, FloatArray

ActsOn = Literal["sampling", "loss"]


def check_acts_on(acts_on: str) -> None:
    """Refuses what factors cannot act on.

    Args:
        acts_on: The argument of a policy.

    Raises:
        ValueError: If it is neither `"sampling"` nor `"loss"`.
    """
    if acts_on not in ("sampling", "loss"):
        raise ValueError(
            f"acts_on must be 'sampling' (more samples of a stream) or 'loss' (each counts more), got {acts_on!r}."
        )


def with_mean_one(factors: FloatArray, active: BoolArray) -> FloatArray:
    """Scales factors on the streams' losses to a mean of 1 over the streams that are there.

    So the loss keeps its scale when a stream leaves, however large its factor was.

    Args:
        factors: `[num_streams]`: how much each stream's loss counts, 0 or more.
        active: bool `[num_streams]`: which streams are there.

    Returns:
        `[num_streams]`; 1 for the others.
    """
    scaled, largest = np.ones(len(factors)), factors[active].max(initial=0.0)
    if largest > 0.0:  # divided by it first: sums of the smallest numbers have no inverse
        scaled[active] = factors[active] / largest
        scaled[active] /= scaled[active].mean()
    return scaled


def decide(factors: FloatArray, own: FloatArray, active: BoolArray, acts_on: ActsOn) -> Decision:
    """Turns factors on the streams' losses into a decision.

    The gradient of a mixed batch is `Σ_k w_k f_k ∇L_k` on average, with sampling weights w and loss weights f. So that
    it is the same to sample by `w_k ∝ own_k · factor_k` as to sample by the streams' own weights and to multiply the
    losses by `f_k ∝ factor_k`. These are scaled to a mean of 1 over the samples, or the step size would change too.

    Args:
        factors: `[num_streams]`: how much each stream's loss counts; positive for a stream with a weight of its own.
        own: `[num_streams]` on the simplex: the streams' own weights.
        active: bool `[num_streams]`: which streams are there; the others wait with their own weights and factor 1.
        acts_on: What is changed.

    Returns:
        The decision.
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
