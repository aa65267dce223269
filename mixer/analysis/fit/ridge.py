"""Ridge regression whose penalty is chosen by its exact error on what is left out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import FloatArray

# Penalties tried, as multiples of the features' largest squared singular value: from next to none to mostly a constant.
_PENALTIES = np.logspace(-8, 1, 19)


@dataclass(frozen=True)
class Ridge:
    """Ridge regressions of several targets on the same features, one for each of the penalties that are tried.

    Minimises `Σ_i (y_i − a − b·x_i)² + λ‖b‖²` with `a` free (Hoerl & Kennard, Technometrics 1970). Leaving out the
    observations G changes their residuals to `(I − H_GG)⁻¹ e_G`, with H the hat matrix (of one observation Allen's
    PRESS, Technometrics 1974; exact for least squares with any quadratic penalty), so no regression is done twice.

    Args:
        left_out: `[num_penalties, num_observations, num_targets]`: predictions for each observation without its group.
        directions: `[rank, num_features]`: right singular vectors of the features.
        gains: `[num_penalties, rank]`: what turns a target's part along a left singular vector into a coefficient.
        parts: `[rank, num_targets]`: the targets along the left singular vectors.
        feature_means: `[num_features]`.
        target_means: `[num_targets]`.
    """

    left_out: FloatArray
    directions: FloatArray
    gains: FloatArray
    parts: FloatArray
    feature_means: FloatArray
    target_means: FloatArray

    def predict(self, features: FloatArray, choice: NDArray[np.intp], targets: NDArray[np.intp]) -> FloatArray:
        """Predicts some of the targets, each with a penalty of its own.

        Args:
            features: `[num_points, num_features]`.
            choice: `[num_chosen]`: which of the penalties.
            targets: `[num_chosen]`: which of the targets.

        Returns:
            `[num_points, num_chosen]`.
        """
        slopes = self.directions.T @ (self.gains[choice].T * self.parts[:, targets])
        predicted: FloatArray = self.target_means[targets] + (features - self.feature_means) @ slopes
        return predicted


def fit_ridge(features: FloatArray, targets: FloatArray, groups: NDArray[np.intp]) -> Ridge:
    """Fits all penalties at once, by one singular value decomposition.

    Args:
        features: `[num_observations, num_features]`.
        targets: `[num_observations, num_targets]`.
        groups: `[num_observations]`: number of the group that each is left out with. Repeated measurements are one
            group: with one of them left in, the best penalty would seem to be none.

    Returns:
        The regressions.
    """
    feature_means, target_means = features.mean(axis=0), targets.mean(axis=0)
    left, values, right = np.linalg.svd(features - feature_means, full_matrices=False)
    penalties = _PENALTIES * (values[0] ** 2 if values[0] > 0.0 else 1.0)
    damped = values**2 + penalties[:, None]
    parts = left.T @ (targets - target_means)
    shrinkage = values**2 / damped
    fitted = target_means + np.einsum("nr,pr,rt->pnt", left, shrinkage, parts, optimize=True)
    left_out = targets - _left_out_residuals(targets - fitted, left, shrinkage, groups)
    return Ridge(left_out, right, values / damped, parts, feature_means, target_means)


def _left_out_residuals(
    residuals: FloatArray, left: FloatArray, shrinkage: FloatArray, groups: NDArray[np.intp]
) -> FloatArray:
    """Gives the residuals `[num_penalties, num_observations, num_targets]` of each group by a fit to the others."""
    found, sizes = np.empty_like(residuals), np.bincount(groups)
    for size in np.unique(sizes[sizes > 0]):  # groups of one size at once
        members = np.stack([np.flatnonzero(groups == group) for group in np.flatnonzero(sizes == size)])
        own = left[members]
        hat = 1.0 / len(left) + np.einsum("gir,pr,gjr->pgij", own, shrinkage, own, optimize=True)
        values, vectors = np.linalg.eigh(np.eye(size) - hat)
        turned = np.swapaxes(vectors, -1, -2) @ residuals[:, members]
        found[:, members] = vectors @ (turned / np.maximum(values, 1e-12)[..., None])
    return found
