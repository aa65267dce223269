"""Rows that are repeated teach less each time."""

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array

REPEAT_PASSES = 15.0  # measured for language models: Muennighoff et al. 2023, arXiv:2305.16264


def passes(seen: FloatArray | Int64Array, num_samples: Int64Array) -> FloatArray:
    """Returns how often streams were passed over, `[num_streams]`; 0 where their size is unknown.

    Args:
        seen: `[num_streams]`: samples so far.
        num_samples: int64 `[num_streams]`: sizes; 0 if unknown.
    """
    found: FloatArray = np.where(num_samples > 0, seen / np.maximum(num_samples, 1), 0.0)
    return found


def discounted(scores: FloatArray, num_passes: FloatArray, repeat_passes: float) -> FloatArray:
    """Lowers positive scores of streams whose rows are repeated, by `exp(−passes after the first / repeat_passes)`.

    Args:
        scores: `[num_streams]`; NaN stays.
        num_passes: `[num_streams]`: passes so far.
        repeat_passes: Passes in which the worth falls to 1/e.
    """
    factors = np.exp(-np.maximum(num_passes - 1.0, 0.0) / repeat_passes)
    found: FloatArray = np.where(scores > 0.0, scores * factors, scores)
    return found


def planned(wanted: FloatArray, repeat_passes: float) -> FloatArray:
    """Returns the shares of wanted passes to plan for, the same at every step of a run.

    If each pass after the first one lowered a stream's share by `exp(−1 / repeat_passes)`, from `w` passes over the run
    `1 + R log(1 + (w − 1) / R)` would be left, most of them early. The same passes spread evenly teach more.

    Args:
        wanted: `[num_streams]`: passes over the whole run.
        repeat_passes: `R`: passes in which the worth falls to 1/e.
    """
    left = np.minimum(wanted, 1.0) + repeat_passes * np.log1p(np.maximum(wanted - 1.0, 0.0) / repeat_passes)
    found: FloatArray = left / np.where(wanted > 0.0, wanted, 1.0)
    return np.where(wanted > 0.0, found, 1.0)
