"""A fitted mixture and how far it can be trusted."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from mixer.tools.analysis.fit.constraints import Region
from mixer.tools.analysis.fit.fit_target import FitTarget
from mixer.tools.analysis.fit.prediction import Prediction
from mixer.tools.console import Result, table_of
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.text import first_of

_NEAR = 0.01
_EDGE = 0.05
_SURE = 1.645  # standard deviations of an interval of 90 %
_LEAST_ORDERED = 5  # mixtures; of four, every 24th order at random is the right one
_FIGURES = (
    *("weights", "objective", "expected_loss", "interval", "expected_losses", "gain", "gain_interval", "error"),
    *("diverged", "constant_error", "rank_correlation", "explains_nothing", "best_run", "trust", "warnings"),
)
_IN_WORDS = ((0.9, "reliable"), (0.7, "good"), (0.4, "rough"), (-1.0, "unreliable"))


class FittedMixture(Result):
    """The best fixed mixture by a fit to runs.

    Args:
        streams: Names of the streams.
        runs: Names of the runs.
        mixtures: `[num_runs, num_streams]`: the mixtures of the runs.
        decides: `[num_runs]`: whether a run is of the largest size, and has not diverged.
        diverged: `[num_runs]`: whether a run has diverged, and is left out.
        objective: The objective.
        prediction: Its prediction; of the negative, where more is better.
        region: Mixtures that are allowed.
        shares: `[num_streams]` on the simplex: the mixture.
        greater_is_better: Whether more of the objective is better.

    Attributes:
        mixtures: The mixtures of the runs that decide.
        diverged: Names of the runs that have diverged.
        expected_loss: The predicted objective of the mixture.
        interval: Its interval of 90 %.
        expected_losses: The predicted losses that count, by name.
        gain: By how much the mixture is predicted to be better than the prior.
        gain_interval: Its interval of 90 %.
        error: Root mean squared error of the objective on mixtures left out.
        constant_error: The error of the mean of the other mixtures, which a fit has to beat.
        rank_correlation: Spearman's, of predicted and recorded objectives of mixtures left out.
    """

    def __init__(
        self,
        streams: Sequence[str],
        runs: Sequence[str],
        mixtures: FloatArray,
        decides: BoolArray,
        diverged: BoolArray,
        objective: FitTarget,
        prediction: Prediction,
        region: Region,
        shares: FloatArray,
        greater_is_better: bool = False,
    ):
        self.streams, self.runs, self.objective = tuple(streams), tuple(runs), objective.name
        self.mixtures = mixtures[decides]
        self._deciding = [run for run, is_in in zip(runs, decides, strict=True) if is_in]
        self.diverged = [run for run, is_out in zip(runs, diverged, strict=True) if is_out]
        self.prediction, self.region, self.shares = prediction, region, shares
        self.sign = -1.0 if greater_is_better else 1.0
        mean, deviation = (float(part[0]) for part in prediction.moments(shares[None]))
        self.expected_loss = self.sign * mean
        self.interval = _interval(self.expected_loss, deviation)
        losses = self.sign * prediction.losses(shares[None])[0]
        self.expected_losses = dict(zip(objective.weights, losses.tolist(), strict=True))
        self.gain, deviation = prediction.gain(shares, region.prior)
        self.gain_interval = _interval(self.gain, deviation)
        self.error, self.constant_error = prediction.error, prediction.constant_error
        self.rank_correlation = prediction.rank_correlation

    @property
    def weights(self) -> dict[str, float]:
        """The mixture by stream, in the form of `mixing`."""
        return dict(zip(self.streams, self.shares.tolist(), strict=True))

    def predict(self, mixtures: FloatArray) -> FloatArray:
        """Predicts the objective `[num_mixtures]`. Trust it only near mixtures of runs."""
        return self.sign * self.prediction(mixtures)

    @property
    def seen(self) -> FloatArray:
        """`[num_mixtures]`: the recorded objective of the mixtures that were left out in turns."""
        return self.sign * self.prediction.seen

    @property
    def best_run(self) -> str:
        """A run of the mixture with the best recorded objective."""
        return self._run_of(self.prediction.mixtures[self.prediction.seen.argmin()])

    def _run_of(self, mixture: FloatArray) -> str:
        return self._deciding[int(np.abs(self.mixtures - mixture).max(axis=1).argmin())]

    def _near(self, mixture: FloatArray) -> list[int]:
        """Recorded mixtures that are this one, to a hundredth."""
        return np.flatnonzero(np.abs(self.prediction.mixtures - mixture).max(axis=1) <= _NEAR).tolist()

    @property
    def explains_nothing(self) -> bool:
        """Whether mixtures left out are predicted no better than by the mean of the others, or in the wrong order."""
        return not (self.error < self.constant_error and self.rank_correlation > 0.0)

    @property
    def trust(self) -> str:
        """What the prediction rests on, in words."""
        correlation = self.rank_correlation
        text = "undefined" if math.isnan(correlation) else f"{correlation:.2f}"
        word = next((word for least, word in _IN_WORDS if correlation >= least), "unreliable")
        if len(self.seen) < _LEAST_ORDERED:
            word = f"unknown, as {len(self.seen)} may come in the right order by chance"
        elif self.explains_nothing:
            word = "unreliable"
        return (
            f"The order of mixtures is {word}: the rank correlation of predicted and recorded objectives of "
            f"{len(self.seen)} mixtures, each left out of the fit, is {text}; their error is {self.error:.4f}, and the "
            f"objectives span {np.ptp(self.seen):.4f}."
        )

    @property
    def at_edge(self) -> list[str]:
        """Streams whose share is about the least or the largest share of any run."""
        least, most = self.mixtures.min(axis=0), self.mixtures.max(axis=0)
        margin = _EDGE * (most - least)
        # No share can be less than 0 or more than 1: these are no edges of the runs.
        low = (self.shares <= least + margin) & (least > 0.0)
        high = (self.shares >= most - margin) & (most < 1.0)
        return [name for name, edge in zip(self.streams, (low | high) & (most > least), strict=True) if edge]

    @property
    def warnings(self) -> list[str]:
        """Reasons not to trust the mixture, in sentences."""
        names = ", ".join(self.diverged)
        left_out = [f"Left out, as their losses are far above all others, so that they have diverged: {names}."]
        return [*(left_out if names else []), *self._doubts_of_the_fit(), *self._doubts_of_the_runs()]

    def _doubts_of_the_fit(self) -> list[str]:
        if self.explains_nothing:
            return [
                f"The fit explains nothing: on mixtures left out its error is {self.error:.4f}, that of the mean of "
                f"the other ones {self.constant_error:.4f}. Record more runs, or more different mixtures."
            ]
        if same := self._near(self.shares):
            seen = ", ".join(f"{self._run_of(self.prediction.mixtures[n])} ({self.seen[n]:.4f})" for n in same)
            return [f"The mixture is that of {seen}: expect the same."]
        if self.gain_interval[0] <= 0.0:
            return [
                f"The gain over your weights may be none: its interval is {_text(self.gain_interval)}. Run both on "
                "another seed before you rely on it."
            ]
        return []

    def _doubts_of_the_runs(self) -> list[str]:
        doubts = []
        if len(self.seen) <= len(self.streams):
            doubts.append(
                f"{len(self.seen)} mixtures cannot tell {len(self.streams)} streams apart: record at least "
                f"{len(self.streams) + 1}, better twice as many as streams."
            )
        absent = [name for name, most in zip(self.streams, self.mixtures.max(axis=0), strict=True) if most == 0.0]
        if absent:
            names = ", ".join(first_of(absent))
            doubts.append(f"No run trained on {names}: the fit knows nothing of them and gives them no share.")
        if self.at_edge:
            edges = ", ".join(first_of(self.at_edge))
            doubts.append(f"The shares of {edges} lie at the edge of the runs: mixtures beyond may be better.")
        return doubts

    def document(self) -> dict[str, Any]:
        """Gives all figures as plain data."""
        prediction = self.prediction
        found = {name: getattr(self, name) for name in _FIGURES}
        seen, left_out = self.seen.tolist(), (self.sign * prediction.left_out).tolist()
        found["mixtures"] = [
            {
                "run": self._run_of(shares),
                "shares": dict(zip(self.streams, shares.tolist(), strict=True)),
                "objective": objective,
                "left_out": predicted,
            }
            for shares, objective, predicted in zip(prediction.mixtures, seen, left_out, strict=True)
        ]
        return found

    def table(self) -> Table:
        """Makes a table of the mixture beside the prior and the best run."""
        best = int(self.prediction.seen.argmin())
        least, most = self.mixtures.min(axis=0), self.mixtures.max(axis=0)
        columns = {"stream": [*self.streams], "share": self.shares.tolist()}
        columns |= {"least of the runs": least.tolist(), "most": most.tolist(), "prior": self.region.prior.tolist()}
        columns |= {"best run": self.prediction.mixtures[best].tolist()}
        num_smaller = len(self.runs) - len(self._deciding) - len(self.diverged)
        smaller = f" and {num_smaller} of smaller models" if num_smaller else ""
        title = f"Best fixed mixture by {len(self._deciding)} runs{smaller} ({self.objective})"
        return table_of(title, pd.DataFrame(columns))

    def sentences(self) -> list[str]:
        """Says what the mixture promises, what that rests on, and why not to trust it; no promise of a failed fit."""
        prior, best = self.predict(self.region.prior[None])[0], self.seen[self.prediction.seen.argmin()]
        recorded = f"The best run, {self.best_run}, recorded {best:.4f}."
        warnings = [f"Warning: {warning}" for warning in self.warnings]
        if self.explains_nothing:
            return [*warnings, recorded, self.trust]
        return [
            f"Predicted objective: {self.expected_loss:.4f}, with 90 % certainty {_text(self.interval)}; with your "
            f"weights {prior:.4f}. {recorded}",
            f"Gain over your weights: {self.gain:.4f}, with 90 % certainty {_text(self.gain_interval)}.",
            self.trust,
            *warnings,
        ]


def _interval(value: float, deviation: float) -> tuple[float, float]:
    return value - _SURE * deviation, value + _SURE * deviation


def _text(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.4f} to {interval[1]:.4f}"
