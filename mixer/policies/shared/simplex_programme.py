"""Exact solutions of quadratic programmes on the simplex with bounds."""

import numpy as np

from mixer.utils.arrays import BoolArray, FloatArray, Int64Array

RIDGE = 1e-6  # relative to the largest coefficient: selects the solution nearest to the centre if the objective is flat
_TOLERANCE = 1e-11
_FEW_STREAMS = 16  # for so few, single changes of bounds are fastest


def minimise_quadratic(
    quadratic: FloatArray, linear: FloatArray, lower: FloatArray, upper: FloatArray, centre: FloatArray
) -> FloatArray:
    """Minimises `½ wᵀQw + cᵀw` over the simplex with `lower ≤ w ≤ upper`.

    An active-set method (Nocedal and Wright 2006, Algorithm 16.3) gives the exact solution; for many streams,
    accelerated projected gradients (Beck and Teboulle 2009, FISTA) first find most of the active bounds. `Q` and `c`
    are divided by their largest coefficient and `RIDGE · ½||w − centre||²` is added, so the solution is unique, the
    same for any order of the streams. No random start, no tolerance to choose.

    Args:
        quadratic: `[num_streams, num_streams]`: Q, symmetric, without negative eigenvalues; see `positive_part`.
        linear: `[num_streams]`: c.
        lower: `[num_streams]`: least weights, 0 or more, with a sum of at most 1.
        upper: `[num_streams]`: largest weights, with a sum of at least 1.
        centre: `[num_streams]`: solution of a flat objective.

    Raises:
        ValueError: If no weights fit the bounds.
    """
    if not (lower.sum() <= 1.0 + 1e-9 and upper.sum() >= 1.0 - 1e-9 and (lower <= upper).all()):
        raise ValueError(f"No weights that sum to 1 lie between {lower.tolist()} and {upper.tolist()}: widen them.")
    scale = max(float(np.abs(quadratic).max()), float(np.abs(linear).max()))
    if not scale > 0.0:
        return project(centre, lower, upper)
    curvature = quadratic / scale + RIDGE * np.eye(len(linear))
    slope = linear / scale - RIDGE * centre
    near = project(centre, lower, upper)
    if len(near) > _FEW_STREAMS:
        near = _approach(curvature, slope, lower, upper, near)
    return _settle(curvature, slope, lower, upper, near)


def positive_part(matrix: FloatArray) -> FloatArray:
    """Returns the nearest matrix without negative eigenvalues.

    Args:
        matrix: `[n, n]`, symmetric up to rounding.
    """
    symmetric = 0.5 * (matrix + matrix.T)
    values, vectors = np.linalg.eigh(symmetric)
    if values[0] >= 0.0:
        return symmetric
    nearest: FloatArray = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return nearest


def project(point: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Returns the nearest weights on the simplex within bounds: `clip(point − ν, lower, upper)`.

    Args:
        point: `[num_streams]`.
        lower: `[num_streams]`: least weights.
        upper: `[num_streams]`: largest weights.
    """
    events = np.concatenate(
        [point - upper, point - lower]
    )  # levels at which weights leave their upper or reach their lower bounds
    order = np.argsort(events, kind="stable")
    levels = events[order]
    num_between = np.cumsum(np.where(order < len(point), 1.0, -1.0))
    sums = upper.sum() - np.concatenate([[0.0], np.cumsum(num_between[:-1] * np.diff(levels))])
    last = max(0, int(np.searchsorted(-sums, -1.0, side="right")) - 1)
    level = levels[last] + ((sums[last] - 1.0) / num_between[last] if num_between[last] > 0.0 else 0.0)
    weights = np.clip(point - level, lower, upper)
    is_free = (weights > lower) & (weights < upper)
    if is_free.any():  # rounding
        weights[is_free] += (1.0 - weights.sum()) / is_free.sum()
    nearest: FloatArray = np.clip(weights, lower, upper)
    return nearest


def _approach(
    curvature: FloatArray, slope: FloatArray, lower: FloatArray, upper: FloatArray, weights: FloatArray
) -> FloatArray:
    ahead = weights
    step, momentum = 1.0 / float(np.abs(curvature).sum(axis=1).max()), 1.0
    for _ in range(1000):
        new = project(ahead - step * (curvature @ ahead + slope), lower, upper)
        next_momentum = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        ahead = new + (momentum - 1.0) / next_momentum * (new - weights)
        moved = float(np.abs(new - weights).max())
        weights, momentum = new, next_momentum
        if moved < _TOLERANCE:
            break
    return weights


def _settle(
    curvature: FloatArray, slope: FloatArray, lower: FloatArray, upper: FloatArray, weights: FloatArray
) -> FloatArray:
    """Moves from feasible weights to the exact solution, one bound at a time."""
    weights = weights.copy()
    free = (weights > lower) & (weights < upper)
    for _ in range(20 * len(weights) + 20):
        gradient = curvature @ weights + slope
        direction, level = _newton(curvature, gradient, free)
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(direction > 0, (upper - weights) / direction, (lower - weights) / direction)
        room[direction == 0.0] = np.inf
        blocking = int(np.argmin(room))
        if room[blocking] < 1.0:
            weights = weights + max(0.0, room[blocking]) * direction
            weights[blocking] = upper[blocking] if direction[blocking] > 0 else lower[blocking]
            free[blocking] = False
            continue
        weights = weights + direction
        released = _released(curvature @ weights + slope, level, free, weights, lower, upper)
        if not len(released):
            break
        free[released] = True
    clipped: FloatArray = np.clip(weights, lower, upper)
    return clipped


def _newton(curvature: FloatArray, gradient: FloatArray, free: BoolArray) -> tuple[FloatArray, float | None]:
    """Step to the minimum over the free weights at a constant sum, and their common slope; `None` if none is free."""
    direction = np.zeros(len(gradient))
    index = np.flatnonzero(free)
    if not len(index):
        return direction, None
    solved = np.linalg.solve(curvature[np.ix_(index, index)], np.stack([gradient[index], np.ones(len(index))], axis=1))
    level = float(solved[:, 0].sum() / solved[:, 1].sum())
    change = level * solved[:, 1] - solved[:, 0]
    direction[index] = change - change.mean()  # its sum is 0 up to rounding, which the small ridge amplifies
    return direction, level


def _released(
    gradient: FloatArray,
    level: float | None,
    free: BoolArray,
    weights: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> Int64Array:
    """Weights to release from their bounds: the one with the wrongest sign, or a pair if none is free."""
    may_rise, may_fall = ~free & (weights < upper), ~free & (weights > lower)
    rise = np.where(may_rise, gradient, np.inf)
    fall = np.where(may_fall, gradient, -np.inf)
    least, most = int(np.argmin(rise)), int(np.argmax(fall))
    if level is None:
        return np.array([least, most] if fall[most] - rise[least] > _TOLERANCE else [], dtype=np.int64)
    if level - rise[least] >= fall[most] - level:
        return np.array([least] if level - rise[least] > _TOLERANCE else [], dtype=np.int64)
    return np.array([most] if fall[most] - level > _TOLERANCE else [], dtype=np.int64)
