"""More of what has much signal and little noise: one step of mirror descent, PiKE's Algorithm 1."""

import numpy as np

from mixer.utils.arrays import FloatArray

_HUGE = 1e300  # infinity with which one can still calculate


def log_changes(
    signal: FloatArray, noise: FloatArray, signal_rate: float, noise_rate: float, scale_free: bool, most: float
) -> FloatArray:
    """Gives the exponents `ζ₁||g_k||² − (ζ₂/2b) σ_k²` (arXiv:2502.06244, Algorithm 1), bounded.

    Args:
        signal: `[num_streams]`: `||g_k||²`, 0 or more.
        noise: `[num_streams]`: `σ_k²`, 0 or more.
        signal_rate: `ζ₁`.
        noise_rate: `ζ₂/2b`.
        scale_free: Whether both are divided by the mean signal.
        most: Largest change of the logarithm of a weight.

    Returns:
        `[num_streams]`: around that of the middle stream (which normalising takes out), cut.
    """
    scale = _mean(signal) if scale_free else 1.0
    if scale == 0.0:  # no signal to measure by
        return np.zeros(len(signal))
    with np.errstate(over="ignore"):
        gain = signal_rate * np.minimum(signal / scale, _HUGE)
        loss = noise_rate * np.minimum(noise / scale, _HUGE)
    exponents = np.minimum(gain, _HUGE) - np.minimum(loss, _HUGE)
    half = most / 2  # both ways, and normalising adds no more than that
    changes: FloatArray = np.clip(exponents - np.median(exponents), -half, half)
    return changes


def _mean(values: FloatArray) -> float:
    """The mean of numbers whose sum may overflow."""
    largest = float(values.max())
    return largest * float((values / largest).mean()) if largest > 0.0 else 0.0
