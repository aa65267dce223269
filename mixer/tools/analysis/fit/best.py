"""The mixture that a fit takes for the best one."""

from collections.abc import Callable, Sequence

import numpy as np

from mixer.tools.analysis.fit.constraints import Region
from mixer.tools.analysis.fit.prediction import Prediction
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value

_NUM_DRAWN, _NUM_KEPT, _NUM_CHILDREN = 1000, 10, 20
_LEAST_SHARE = 1e-6  # less is none
_WIDTHS = np.geomspace(1.0, 1e-3, 20)

Bounds = Sequence[tuple[Prediction, float]]  # what must not be above a number


def best_mixture(
    prediction: Prediction, region: Region, runs: FloatArray, bounds: Bounds = (), seed: int = 0
) -> FloatArray:
    """Minimises the predicted objective and two standard deviations, within the range of the runs' shares.

    A population of mixtures, drawn around the prior and the runs, is moved by ever smaller steps: any bound can be
    kept, and a prediction may have several minima.

    Args:
        prediction: The fit.
        region: Mixtures that are allowed.
        runs: `[num_runs, num_streams]`.
        bounds: Other predictions and their largest values.
        seed: Of the draws.

    Returns:
        `[num_streams]`.

    Raises:
        ValueError: If no mixture is predicted to keep the bounds.
    """
    random = np.random.default_rng(seed)
    inside = region.within(runs.min(axis=0), runs.max(axis=0))

    def careful(points: FloatArray) -> FloatArray:
        return np.asarray(np.where(excess(points, bounds) > 0.0, np.inf, prediction.careful(points)))

    starts = np.concatenate(
        [inside.prior[None], inside.nearest(inside.groups_of(runs)), inside.draw(_NUM_DRAWN, random)]
    )
    if not np.isfinite(careful(starts)).any():
        starts = _refined(starts, lambda points: excess(points, bounds), inside, random)
    found = _refined(starts, careful, inside, random)[0]
    if not np.isfinite(careful(found[None])).all():
        raise wrong_value("bounds", "No mixture is predicted to keep the bounds of losses: raise them.")
    found = np.where(found < _LEAST_SHARE, 0.0, found)
    return np.asarray(found / found.sum())


def excess(points: FloatArray, bounds: Bounds) -> FloatArray:
    """Gives by how much the worst bound is exceeded, by prediction; 0 or less where all are kept."""
    over = [prediction(points) - bound for prediction, bound in bounds]
    return np.asarray(np.max(over or [np.zeros(len(points))], axis=0))


def _refined(
    points: FloatArray, value: Callable[[FloatArray], FloatArray], region: Region, random: np.random.Generator
) -> FloatArray:
    """Gives the best points that were found, best first."""
    values = value(points)
    for width in _WIDTHS:
        kept = np.argsort(values, kind="stable")[:_NUM_KEPT]
        points, values = points[kept], values[kept]
        children = region.near(np.repeat(points, _NUM_CHILDREN, axis=0), float(width), random)
        points, values = np.concatenate([points, children]), np.concatenate([values, value(children)])
    return np.asarray(points[np.argsort(values, kind="stable")])
