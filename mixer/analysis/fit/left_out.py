"""How well a regression predicts runs that it has not seen."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mixer.analysis.fit.laws import Predictor, Regressor
from mixer.analysis.fit.replicates import Groups, numbered
from mixer.utils.arrays import FloatArray

MOST_FOLDS = 40


@dataclass(frozen=True)
class LeftOut:
    """Predictions of the objective for runs that were left out of the fit.

    Args:
        predicted: `[num_runs]`.
        seen: `[num_runs]`: what it was.
    """

    predicted: FloatArray
    seen: FloatArray

    @property
    def error(self) -> float:
        """The root of the mean squared error."""
        return float(np.sqrt(np.mean((self.predicted - self.seen) ** 2)))

    @property
    def rank_correlation(self) -> float:
        """Spearman's: 1 if the predictions put the runs in their order; NaN if one of the two is constant."""
        ranks = [pd.Series(values).rank().to_numpy() for values in (self.predicted, self.seen)]
        if any(np.ptp(rank) == 0.0 for rank in ranks):
            return float("nan")
        return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def leave_out(
    mixtures: FloatArray,
    losses: FloatArray,
    groups: Groups,
    fit: Regressor,
    objective: Callable[[FloatArray], FloatArray],
) -> LeftOut:
    """Predicts every mixture by a fit to the others; more than 40 mixtures are left out in 40 parts.

    Everything that a fit chooses it chooses anew without those left out.

    Args:
        mixtures: `[num_runs, num_streams]`.
        losses: `[num_runs, num_losses]`.
        groups: `[num_runs]`: a number for each mixture, whose runs are left out together.
        fit: The regression.
        objective: Gives the objective `[num_runs]` of losses.

    Returns:
        The predictions.
    """
    numbers = numbered(groups)
    folds = numbers % min(int(numbers.max()) + 1, MOST_FOLDS)
    predicted = np.empty(len(mixtures))
    for fold in range(int(folds.max()) + 1):
        is_out = folds == fold
        predicted[is_out] = objective(fit(mixtures[~is_out], losses[~is_out], groups[~is_out])(mixtures[is_out]))
    return LeftOut(predicted, objective(losses))


def fit_constant(mixtures: FloatArray, losses: FloatArray, groups: Groups) -> Predictor:
    """Predicts the mean, whatever the mixture: what a fit has to be better than.

    Args:
        mixtures: `[num_runs, num_streams]`.
        losses: `[num_runs, num_losses]`.
        groups: `[num_runs]`, which make no difference.

    Returns:
        The predictor.
    """
    mean = losses.mean(axis=0)
    return lambda points: np.tile(mean, (len(points), 1))
