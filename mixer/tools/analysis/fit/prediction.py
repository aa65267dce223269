"""The objective of mixtures, predicted by a fit of each of its losses."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from mixer.tools.analysis.fit.fit_target import FitTarget
from mixer.tools.analysis.fit.surrogate import Geometry, Surrogate, fit_surrogates, rank_correlation
from mixer.utils.arrays import BoolArray, FloatArray

_MOST_FOLDS = 10
_CAREFUL = 2.0
_LEAST_DEVIATION = 1e-12
_SECONDS_UNTOLD = 2.0  # before a bar of progress is shown, on a terminal


@dataclass(frozen=True)
class Prediction:
    """Predicts an objective of mixtures.

    Args:
        objective: The objective.
        surrogates: The fit of each of its losses.
        mixtures: `[num_mixtures, num_streams]`: the mixtures of the runs that have all losses.
        seen: `[num_mixtures]`: their objective.
        left_out: `[num_mixtures]`: their objective, predicted by fits to the others.
        inflation: Factor of standard deviations, so that they fit the errors of mixtures left out.
    """

    objective: FitTarget
    surrogates: Sequence[Surrogate]
    mixtures: FloatArray
    seen: FloatArray
    left_out: FloatArray = field(default_factory=lambda: np.empty(0))
    inflation: float = 1.0

    def losses(self, points: FloatArray) -> FloatArray:
        """Predicts the losses `[num_points, num_losses]`."""
        return np.stack([mean for mean, _ in self._moments(points)], axis=1)

    def _moments(self, points: FloatArray, *, of_runs: bool = False) -> list[tuple[FloatArray, FloatArray]]:
        """Predicts each loss and its standard deviation; losses of the same runs share most of the work."""
        shared = {id(own.mixtures): Geometry(points, own.mixtures) for own in self.surrogates}
        return [own.moments(points, of_runs=of_runs, geometry=shared[id(own.mixtures)]) for own in self.surrogates]

    def __call__(self, points: FloatArray) -> FloatArray:
        """Predicts the objective `[num_points]`."""
        return self.objective(self.losses(points))

    def moments(self, points: FloatArray, *, of_runs: bool = False) -> tuple[FloatArray, FloatArray]:
        """Predicts the objective `[num_points]` and its standard deviation, `of_runs` with the noise of one."""
        found = self._moments(points, of_runs=of_runs)
        means = np.stack([mean for mean, _ in found], axis=1)
        spread = self.objective.slopes(means) * np.stack([deviation for _, deviation in found], axis=1)
        return self.objective(means), self.inflation * np.sqrt((spread**2).sum(axis=1))

    def careful(self, points: FloatArray) -> FloatArray:
        """Gives the prediction and two standard deviations `[num_points]`, by which a mixture is chosen."""
        means, deviations = self.moments(points)
        return np.asarray(means + _CAREFUL * deviations)

    def gain(self, better: FloatArray, worse: FloatArray) -> tuple[float, float]:
        """Predicts by how much a mixture is better than another one, and the standard deviation of that."""
        pair = np.stack([worse, better])
        means = self.losses(pair)
        signed = self.objective.slopes(means) * np.array([[1.0], [-1.0]])
        covariances = np.stack([surrogate.posterior(pair)[1] for surrogate in self.surrogates])
        variance = np.einsum("il,lij,jl->", signed, covariances, signed)
        worse_value, better_value = self.objective(means)
        return float(worse_value - better_value), self.inflation * math.sqrt(max(float(variance), 0.0))

    def believing(self, points: FloatArray) -> "Prediction":
        """Takes its own predictions of mixtures `[num_points, num_streams]` for runs."""
        return replace(self, surrogates=[surrogate.believing(points) for surrogate in self.surrogates])

    @property
    def error(self) -> float:
        """Root mean squared error of mixtures left out."""
        return float(np.sqrt(np.mean((self.left_out - self.seen) ** 2)))

    @property
    def constant_error(self) -> float:
        """The same of the mean of the other mixtures, which a fit has to beat."""
        return float(self.seen.std() * len(self.seen) / (len(self.seen) - 1))

    @property
    def rank_correlation(self) -> float:
        """Spearman's rank correlation of predicted and seen objectives of mixtures left out."""
        return rank_correlation(self.left_out, self.seen)


def predict_objective(
    objective: FitTarget,
    mixtures: FloatArray,
    losses: FloatArray,
    counts: FloatArray,
    smaller: Prediction | None = None,
    *,
    is_checked: bool = True,
) -> Prediction:
    """Fits a prediction.

    Args:
        objective: The objective.
        mixtures: `[num_mixtures, num_streams]` on the simplex.
        losses: `[num_mixtures, num_losses]`: those that count; NaN where one is missing.
        counts: `[num_mixtures]`: how many runs a mixture is the mean of.
        smaller: The prediction for smaller models, which informs this one.
        is_checked: Whether mixtures are left out in turns, to know the errors.
    """

    def fit(rows: BoolArray) -> Sequence[Surrogate]:
        own = None if smaller is None else smaller.surrogates
        return fit_surrogates(mixtures[rows], losses[rows], counts[rows], own)

    whole = np.asarray(np.isfinite(losses).all(axis=1))
    seen = objective(losses[whole])
    found = Prediction(objective, fit(np.ones(len(mixtures), dtype=bool)), mixtures[whole], seen)
    return _checked(found, fit, whole) if is_checked else found


def _checked(found: Prediction, fit: Callable[[BoolArray], Sequence[Surrogate]], whole: BoolArray) -> Prediction:
    """Leaves mixtures out in parts; all choices of a fit are made without them."""
    places = np.flatnonzero(whole)
    folds = np.arange(len(places)) % _MOST_FOLDS
    left_out, deviations = np.empty(len(places)), np.empty(len(places))
    parts = range(int(folds.max()) + 1)
    for fold in tqdm(parts, "Fits without some mixtures", leave=False, disable=None, delay=_SECONDS_UNTOLD):
        is_out = folds == fold
        is_in = np.ones(len(whole), dtype=bool)
        is_in[places[is_out]] = False
        part = replace(found, surrogates=fit(is_in))
        left_out[is_out], deviations[is_out] = part.moments(found.mixtures[is_out], of_runs=True)
    errors = (left_out - found.seen) / np.maximum(deviations, _LEAST_DEVIATION)
    return replace(found, left_out=left_out, inflation=math.sqrt(max(1.0, float(np.mean(errors**2)))))
