"""Rows that are repeated teach less each time."""

import numpy as np

from mixer.policies.contract import Observation
from mixer.policies.shared.shares import shares
from mixer.utils.arrays import FloatArray, Int64Array

# What is expected before the run shows it, on the safe side: 15 is measured for language models, Muennighoff et al.
# 2023, arXiv:2305.16264, but small classifiers know their rows by heart after a few passes.
REPEAT_PASSES = 3.0
_LEAST_RATE = 1e-9  # none at all


def passes(seen: FloatArray | Int64Array, num_samples: Int64Array) -> FloatArray:
    """Returns how often streams were passed over, `[num_streams]`; 0 where their size is unknown.

    Args:
        seen: `[num_streams]`: samples so far.
        num_samples: int64 `[num_streams]`: sizes; 0 if unknown.
    """
    found: FloatArray = np.where(num_samples > 0, seen / np.maximum(num_samples, 1), 0.0)
    return found


def planned(wanted: FloatArray, rates: FloatArray) -> FloatArray:
    """Returns the shares of wanted passes to plan for, the same at every step of a run.

    If each pass after the first one lowered a stream's share by `exp(−r)`, from `w` passes over the run
    `1 + log(1 + r (w − 1)) / r` would be left, most of them early. The same passes spread evenly teach more.

    Args:
        wanted: `[num_streams]`: passes over the whole run.
        rates: `[num_streams]`: `r`, by how much the logarithm of the worth falls at each pass; see `Memory`.
    """
    rates = np.maximum(rates, _LEAST_RATE)
    left = np.minimum(wanted, 1.0) + np.log1p(rates * np.maximum(wanted - 1.0, 0.0)) / rates
    found: FloatArray = left / np.where(wanted > 0.0, wanted, 1.0)
    return np.where(wanted > 0.0, found, 1.0)


def at_most(weights: FloatArray, most: FloatArray) -> FloatArray:
    """Lowers weights to the largest share of each; the others keep their proportions.

    Args:
        weights: `[num_streams]` on the simplex.
        most: `[num_streams]`: the largest shares.

    Returns:
        `[num_streams]` with a sum of 1, or less where all streams that have a weight are at their most.
    """
    lowered, is_high = weights, weights > most
    while is_high.any():
        lowered = np.where(is_high, most, weights)
        rest, free = 1.0 - most[is_high].sum(), weights[~is_high].sum()
        lowered[~is_high] *= max(rest, 0.0) / free if free > 0.0 else 0.0
        if not (lowered > most * (1.0 + 1e-12)).any():
            break
        is_high |= lowered > most
    return lowered


def within_ends(weights: FloatArray, ends: FloatArray | None, observation: Observation) -> FloatArray:
    """Lowers the weights of streams that would be used up before the run ends to what lasts until then.

    Args:
        weights: `[num_streams]` on the simplex.
        ends: `[num_streams]`: samples after which a stream is used up; `None` if none ever is.
        observation: The observation that is decided on.

    Returns:
        `[num_streams]` on the simplex.
    """
    left = np.inf if ends is None else np.where(observation.is_active, ends - observation.seen, np.inf)
    if not np.isfinite(left).any() or not 0.0 < observation.progress < 1.0:
        return weights
    lengths, seen = observation.tokens_per_sample, observation.seen
    units = np.ones(len(weights)) if lengths is None else lengths
    num_left = float(seen @ units) * (1.0 / observation.progress - 1.0)
    return shares(at_most(weights, np.maximum(left, 0.0) * units / max(num_left, 1.0)))
