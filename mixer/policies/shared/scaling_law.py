"""Scaling laws of losses."""

import itertools
from dataclasses import dataclass

import numpy as np

from mixer.utils.arrays import FloatArray

MIN_POINTS = 4  # one more than the law has parameters
EXPONENTS = (0.05, 0.8)

_HUBER = 1e-3
_NUM_ITERATIONS = 50
_START_EXPONENTS = (0.05, 0.1, 0.2, 0.4, 0.8)
_START_FLOORS = (0.99, 0.8, 0.4, 0.01)  # of the smallest loss
_STILL = (5.0, 10.0, 20.0)  # logarithm of the falling term below the loss, for nearly constant losses
_LEAST = 20.0  # logarithm below the smallest loss of a negligible term
_MOST = 5.0  # logarithm above the largest loss of the falling term, at the last point


@dataclass(frozen=True)
class ScalingLaw:
    """The law `L(n) = exp(e) + exp(a)/n^α`.

    Args:
        log_floor: `e`, the logarithm of the irreducible loss.
        log_scale: `a`.
        exponent: `α`.
    """

    log_floor: float
    log_scale: float
    exponent: float

    def log_slope(self, amount: float) -> float:
        """Returns the logarithm of `−dL/dn = α (L(n) − exp(e)) / n`.

        Args:
            amount: `n`, above 0.
        """
        log_amount = float(np.log(amount))
        return float(np.log(self.exponent)) + self.log_scale - self.exponent * log_amount - log_amount


def fit_scaling_law(log_amounts: FloatArray, log_losses: FloatArray) -> ScalingLaw:
    """Fits a law to a loss curve, by the Huber loss of `log L` from a grid of starts.

    Jiang et al. 2024, arXiv:2410.11820: minimises `Σ huber(log L(n_i) − log L_i)` with `δ = 1e-3`, from starts on a
    grid, and keeps the best. The grid is ours (the authors' code has one of 512 starts for every stream). Damped
    Gauss-Newton steps on reweighted squares (Levenberg-Marquardt) replace L-BFGS: a fixed number of iterations, all
    starts at once, no random numbers.

    The exponent is within [0.05, 0.8]: the authors' code penalises exponents above 0.8 and counts those below 0.05 as
    0.05. As a bound of the fit the latter avoids a falling law for a constant loss (with an exponent near 0 the law is
    flat whatever its scale). The code's limits on `e` and `a`, made for losses of language models in nats, are left
    out; here each term is bounded by the losses themselves.

    Args:
        log_amounts: `[num_points]`, ascending, at least `MIN_POINTS`.
        log_losses: `[num_points]`.

    Raises:
        ValueError: If there are too few points.
    """
    if len(log_amounts) < MIN_POINTS:
        raise ValueError(f"a scaling law needs at least {MIN_POINTS} points, got {len(log_amounts)}; wait for more.")
    last = log_amounts[-1]  # amounts in units of the last one, so the terms are comparable with the losses
    amounts, losses = log_amounts - last, log_losses
    low = np.array([losses.min() - _LEAST, losses.min() - _LEAST, EXPONENTS[0]])
    high = np.array([losses.max(), losses.max() + _MOST, EXPONENTS[1]])
    parameters = np.clip(_starts(amounts, losses), low, high)
    values = _huber(_predict(parameters, amounts) - losses).sum(axis=1)
    damping = np.full(len(parameters), 1e-2)
    for _ in range(_NUM_ITERATIONS):
        moved = np.clip(parameters - _steps(parameters, amounts, losses, damping), low, high)
        moved_values = _huber(_predict(moved, amounts) - losses).sum(axis=1)
        is_better = moved_values < values
        parameters = np.where(is_better[:, None], moved, parameters)
        values = np.where(is_better, moved_values, values)
        damping = np.clip(np.where(is_better, damping / 4.0, damping * 4.0), 1e-9, 1e9)
    log_floor, log_scale, exponent = parameters[int(np.argmin(values))]
    return ScalingLaw(float(log_floor), float(log_scale + exponent * last), float(exponent))


def _starts(amounts: FloatArray, losses: FloatArray) -> FloatArray:
    """`[num_starts, 3]`: constant losses; for each floor and exponent, the scale that fits the median point."""
    middle = np.median(losses)
    starts = [[middle, middle - below, EXPONENTS[0]] for below in _STILL]
    for floor, exponent in itertools.product(_START_FLOORS, _START_EXPONENTS):
        log_floor = losses.min() + np.log(floor)
        above = losses + np.log1p(-np.exp(log_floor - losses))  # log(L - exp(e))
        starts.append([log_floor, np.median(above + exponent * amounts), exponent])
    return np.array(starts)


def _predict(parameters: FloatArray, amounts: FloatArray) -> FloatArray:
    """`[num_starts, num_points]`: log L."""
    log_floor, log_scale, exponent = parameters.T[:, :, None]
    predicted: FloatArray = np.logaddexp(log_floor, log_scale - exponent * amounts)
    return predicted


def _huber(errors: FloatArray) -> FloatArray:
    size = np.abs(errors)
    return np.where(size > _HUBER, _HUBER * (size - 0.5 * _HUBER), 0.5 * errors**2)


def _steps(parameters: FloatArray, amounts: FloatArray, losses: FloatArray, damping: FloatArray) -> FloatArray:
    """`[num_starts, 3]`: damped Gauss-Newton steps; weighted squares have the gradient of the Huber loss."""
    predicted = _predict(parameters, amounts)
    errors = predicted - losses
    weights = _HUBER / np.maximum(np.abs(errors), _HUBER)
    part_of_floor = np.exp(parameters[:, :1] - predicted)
    part_that_falls = 1.0 - part_of_floor
    slopes = np.stack([part_of_floor, part_that_falls, -part_that_falls * amounts], axis=1)
    gradient = (slopes * (weights * errors)[:, None]).sum(axis=2)
    curvature = (slopes[:, :, None] * slopes[:, None] * weights[:, None, None]).sum(axis=3)
    diagonal = np.einsum("sii->si", curvature)
    added = damping[:, None] * (diagonal + 1e-3 * diagonal.sum(axis=1, keepdims=True)) + 1e-15
    solved: FloatArray = np.linalg.solve(curvature + added[:, :, None] * np.eye(3), gradient[:, :, None])[:, :, 0]
    return solved
