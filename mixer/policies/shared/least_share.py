"""A least share for every stream that leaves the others their proportions."""

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray


def resolve_least(given: float | None, usual: float, num_streams: int, who: str, option: str) -> float:
    """Gives the least share of each stream.

    Args:
        given: What the user gave; `None` for the default.
        usual: The default of few streams. Of many it is half of what each would have of equal shares, so that half of
            the samples is left to go by something else.
        num_streams: Number of streams.
        who: The policy, for errors.
        option: What it calls the share.

    Returns:
        The share.

    Raises:
        ValueError: If the shares given to all streams are more than 1.
    """
    half = 1 / (2 * num_streams)
    if given is None:
        return min(usual, half)
    if given * num_streams > 1.0 + 1e-12:
        raise ValueError(
            f"{who}: {option} {given} for each of {num_streams} streams is more than 1 in all; "
            f"give {option}={half:.2g} or so, or leave it out."
        )
    return given


def at_least(weights: FloatArray, least: float) -> FloatArray:
    """Lifts weights to a least share; the others keep their proportions.

    Args:
        weights: `[num_streams]` on the simplex.
        least: The least share; above 1/K all shares are equal.

    Returns:
        `[num_streams]`; the weights themselves where none is below.
    """
    num_streams = len(weights)
    if least * num_streams >= 1.0:
        return np.full(num_streams, 1.0 / num_streams)
    lifted, is_low = weights, weights < least
    while is_low.any():
        lifted = np.where(is_low, least, weights * ((1.0 - least * is_low.sum()) / weights[~is_low].sum()))
        if not (lifted < least).any():
            break
        is_low |= lifted < least
    return lifted


def share_out(
    weights: FloatArray, own: FloatArray, active: BoolArray, least: float, tokens_per_sample: FloatArray | None = None
) -> FloatArray:
    """Shares a batch out among the streams that are there; the others wait with their own weights.

    What is sampled is then in the proportions of those that are there, whatever the others have. If none of them has a
    weight, all that have one having left, their own weights rule: else a run would end that has samples left.

    Args:
        weights: `[num_streams]` on the simplex.
        own: `[num_streams]` on the simplex: the streams' own weights.
        active: bool `[num_streams]`: which streams are there.
        least: Least share of the samples of the batch of each of them.
        tokens_per_sample: `[num_streams]`, above 0, if the weights are shares of tokens; `None` if they are of samples.

    Returns:
        `[num_streams]` on the simplex; the own weights if none of those that are there has any.
    """
    weights = weights if weights[active].sum() > 0.0 else own
    among = weights[active].sum()
    if not among > 0.0:
        return weights
    shared: FloatArray = own * min(1.0, 0.99 / max(own[~active].sum(), 1e-9))
    lengths = np.ones(1) if tokens_per_sample is None else tokens_per_sample[active]
    in_samples = weights[active] / among / lengths
    lifted = at_least(in_samples / in_samples.sum(), least) * lengths
    shared[active] = (1.0 - shared[~active].sum()) * (lifted / lifted.sum())
    return shared
