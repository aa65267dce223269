"""What a fit found, and how far it can be trusted."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mixer.analysis.fit.left_out import LeftOut
from mixer.analysis.fit.objective import Objective
from mixer.utils.arrays import FloatArray

_NEAR = 0.01
_EDGE = 0.05


@dataclass(frozen=True)
class FittedMixture:
    """The best fixed mixture by a fit to runs, and what the fit is worth.

    Args:
        streams: Names of the streams.
        shares: `[num_streams]` on the simplex: the mixture.
        expected_loss: The objective that the fit predicts for it.
        expected_losses: The losses that count, by name, as predicted for it.
        objective: What was made small.
        regressor: The regression.
        errors: By regression that was tried: root mean squared error of the objective on runs left out.
        left_out: The predictions of the one taken for runs left out.
        constant_error: The error of the mean of the other runs, which a fit has to beat.
        runs: Names of the runs.
        mixtures: `[num_runs, num_streams]`: those of the runs.
        predict: The fit: objective `[num_mixtures]` of mixtures `[num_mixtures, num_streams]`; to be trusted only
            among the mixtures that runs cover.
    """

    streams: tuple[str, ...]
    shares: FloatArray
    expected_loss: float
    expected_losses: dict[str, float]
    objective: Objective
    regressor: str
    errors: dict[str, float]
    left_out: LeftOut
    constant_error: float
    runs: tuple[str, ...]
    mixtures: FloatArray
    predict: Callable[[FloatArray], FloatArray] = field(repr=False)

    @property
    def weights(self) -> dict[str, float]:
        """The mixture by name of the stream, as `mixing` takes it."""
        return dict(zip(self.streams, self.shares.tolist(), strict=True))

    @property
    def error(self) -> float:
        """Root mean squared error of the objective on runs left out.

        A little too small where the regression was chosen by it, and for mixtures far from every run.
        """
        return self.left_out.error

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of the predictions for runs left out with what they had."""
        return self.left_out.rank_correlation

    @property
    def best_run(self) -> int:
        """The run with the least objective."""
        return int(self.left_out.seen.argmin())

    @property
    def uniform_runs(self) -> list[int]:
        """Runs of the uniform mixture, to a hundredth."""
        return _near(self.mixtures, np.full(len(self.streams), 1.0 / len(self.streams)))

    @property
    def same_runs(self) -> list[int]:
        """Runs that trained on this very mixture, to a hundredth."""
        return _near(self.mixtures, self.shares)

    @property
    def gain(self) -> float:
        """How much better the mixture is expected to be than the best run was."""
        return float(self.left_out.seen[self.best_run] - self.expected_loss)

    @property
    def explains_nothing(self) -> bool:
        """Whether runs left out are predicted no better than by the mean of the others, or not in their order."""
        return not (self.error < self.constant_error and self.rank_correlation > 0.0)

    @property
    def at_edge(self) -> list[str]:
        """Streams of which the mixture has as much, or as little, as any run had: it may want more, or less."""
        least, most = self.mixtures.min(axis=0), self.mixtures.max(axis=0)
        margin = _EDGE * (most - least)
        # Shares of 0 are the edge of what can be, not of what was tried.
        low = (self.shares <= least + margin) & (least > 0.0)
        high = (self.shares >= most - margin) & (most < 1.0)
        return [name for name, edge in zip(self.streams, (low | high) & (most > least), strict=True) if edge]

    @property
    def warnings(self) -> list[str]:
        """Reasons not to trust the mixture, in sentences."""
        return [*self._doubts_of_the_fit(), *self._doubts_of_the_runs()]

    def _doubts_of_the_fit(self) -> list[str]:
        if self.explains_nothing:
            correlation = self.rank_correlation
            order = "there is no order" if math.isnan(correlation) else f"the rank correlation is {correlation:.2f}"
            return [
                f"The fit explains nothing: for runs left out it errs by {self.error:.4f}, the mean of the others by "
                f"{self.constant_error:.4f}, and of its predictions with what they had {order}. Record more runs, or "
                "more different mixtures."
            ]
        if self.same_runs:
            seen = ", ".join(f"{self.runs[run]} ({self.left_out.seen[run]:.4f})" for run in self.same_runs)
            return [f"The mixture is that of {seen}: what was seen there is to be expected."]
        if self.gain <= self.error:
            return [
                f"The mixture is not told apart from the best run, {self.runs[self.best_run]}: that came to "
                f"{self.left_out.seen[self.best_run]:.4f}, {self.expected_loss:.4f} is expected, and the difference is "
                f"within the error of {self.error:.4f}."
            ]
        return []

    def _doubts_of_the_runs(self) -> list[str]:
        found = []
        if len(self.runs) <= len(self.streams):
            found.append(
                f"{len(self.runs)} runs cannot tell {len(self.streams)} streams apart: record at least "
                f"{len(self.streams) + 1}, better twice as many as streams."
            )
        absent = [name for name, most in zip(self.streams, self.mixtures.max(axis=0), strict=True) if most == 0.0]
        if absent:
            found.append(f"No run trained on {absent}: nothing is known of what they would do, and they get no share.")
        if self.at_edge:
            found.append(
                f"The shares of {self.at_edge} lie at the edge of what the runs cover: runs beyond it may be better."
            )
        return found


def _near(mixtures: FloatArray, mixture: FloatArray) -> list[int]:
    near: list[int] = np.flatnonzero(np.abs(mixtures - mixture).max(axis=1) <= _NEAR).tolist()
    return near
