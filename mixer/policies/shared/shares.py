"""Shares on the simplex: from scores, with a least share, and among the present streams."""

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.errors import InvalidValueError


def shares(weights: FloatArray) -> FloatArray:
    """Divides weights by their sum; weights that sum to 0 are returned as they are."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else weights


def divided_anew(weights: FloatArray, among: BoolArray, parts: FloatArray) -> FloatArray:
    """Divides the common share of some streams anew; the others keep theirs.

    Args:
        weights: `[num_streams]`.
        among: bool `[num_streams]`: these streams.
        parts: `[num_among]` on the simplex.

    Returns:
        `[num_streams]` with the same sum.
    """
    divided = weights.copy()
    divided[among] = divided[among].sum() * parts
    return divided


def softmax(scores: FloatArray, among: BoolArray | None = None) -> FloatArray:
    """Converts scores to shares: `exp(s_k) / Σ_j exp(s_j)`.

    Args:
        scores: `[num_streams]`: any size; finite for the streams of `among`.
        among: bool `[num_streams]`: streams that count; `None` for all.

    Returns:
        `[num_streams]`: shares with a sum of 1 (0 if no stream counts); 0 for the others, and for scores far below the
        largest.
    """
    among = np.ones(len(scores), dtype=np.bool_) if among is None else among
    shares = np.zeros(len(scores))
    if among.any():
        with np.errstate(over="ignore"):  # -inf is a share of 0
            exponentials = np.exp(scores[among] - scores[among].max())
        shares[among] = exponentials / exponentials.sum()
    return shares


def resolve_least(least: float | None, usual: float, num_streams: int, who: str, option: str) -> float:
    """Returns the least share of each stream.

    Args:
        least: The user's value; `None` for the default.
        usual: The default for few streams. For many it is half of an equal share, so half of the samples can follow the
            policy.
        num_streams: Number of streams.
        who: The policy, for errors.
        option: Its name for the share.

    Raises:
        ValueError: If the shares of all streams exceed 1.
    """
    half = 1 / (2 * num_streams)
    if least is None:
        return min(usual, half)
    if least * num_streams > 1.0 + 1e-12:
        text = f"{who}: {option} {least} for each of {num_streams} streams is more than 1 in all; leave it out."
        raise InvalidValueError(text, option=option)
    return least


def at_least(weights: FloatArray, least: float) -> FloatArray:
    """Raises weights to a least share; the others keep their proportions.

    Args:
        weights: `[num_streams]` on the simplex.
        least: The least share; above 1/K all shares are equal.

    Returns:
        `[num_streams]`; the weights themselves if none is below.
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
    """Divides a batch among the present streams; the others keep their own weights for later.

    Samples follow the proportions of the present streams, whatever the others have. If no present stream has a weight,
    because all with a weight have ended, your weights apply: otherwise the run would end with samples left.

    Args:
        weights: `[num_streams]` on the simplex.
        own: `[num_streams]` on the simplex: your weights.
        active: bool `[num_streams]`: present streams.
        least: Least share of each of them in the samples of the batch.
        tokens_per_sample: `[num_streams]`, positive, if the weights are shares of tokens; `None` for samples.

    Returns:
        `[num_streams]` on the simplex; your weights if no present stream has any.
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
