"""A fitted mixture and how far it can be trusted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich.table import Column, Table

from mixer.analysis.fit.regressors import REGRESSORS, Groups, LeftOut, fit_constant, leave_out
from mixer.analysis.fit.search import search
from mixer.utils.arrays import FloatArray
from mixer.utils.console import Result

_NEAR = 0.01
_EDGE = 0.05


@dataclass(frozen=True)
class Objective:
    """The weighted mean, or the largest, of several losses; less is better.

    Args:
        name: Its name in tables.
        weights: Weights of the losses that count, by name, sum 1.
        is_worst: Whether it is the largest of these losses.
    """

    name: str
    weights: dict[str, float]
    is_worst: bool = False

    def terms(self, losses: FloatArray) -> FloatArray:
        """Gives the smooth terms `[num_mixtures, num_terms]` whose maximum is the objective."""
        return losses if self.is_worst else losses @ np.array([*self.weights.values()])[:, None]

    def __call__(self, losses: FloatArray) -> FloatArray:
        """Gives the objective `[num_mixtures]` of the losses that count `[num_mixtures, num_losses]`."""
        return np.asarray(self.terms(losses).max(axis=1))


class FittedMixture(Result):
    """The best fixed mixture by a fit to runs.

    Args:
        streams: Names of the streams.
        runs: Names of the runs.
        mixtures: `[num_runs, num_streams]`: the mixtures of the runs.
        losses: `[num_runs, num_losses]`: their losses that count.
        groups: `[num_runs]`: number of the mixture.
        objective: The objective.
        regressors: Names of the regressions to try.
        least_share: Least share of every stream.

    Attributes:
        shares: `[num_streams]` on the simplex: the mixture.
        expected_loss: The predicted objective of the mixture.
        expected_losses: The predicted losses that count, by name.
        objective: Name of the objective.
        regressor: Name of the regression.
        errors: Root mean squared error of the objective on runs left out, by regression that was tried.
        left_out: Predictions of the chosen regression for runs left out.
        constant_error: The error of the mean of the other runs, which a fit has to beat.
        predict: Predicts the objective `[num_mixtures]` of mixtures `[num_mixtures, num_streams]`. Trust it only
            within the convex hull of the runs' mixtures.
    """

    def __init__(
        self,
        streams: Sequence[str],
        runs: Sequence[str],
        mixtures: FloatArray,
        losses: FloatArray,
        groups: Groups,
        objective: Objective,
        regressors: Sequence[str],
        least_share: float,
    ):
        self.streams, self.runs, self.mixtures, self.objective = tuple(streams), tuple(runs), mixtures, objective.name
        order = np.argsort(objective(losses), kind="stable")  # so that the order of the runs makes no difference
        groups, shares = pd.factorize(groups[order])[0], mixtures[order]
        recorded = np.array([shares[groups == group].mean(axis=0) for group in groups]), losses[order]
        tried = {name: leave_out(*recorded, groups, REGRESSORS[name], objective) for name in regressors}
        self.errors = {name: left_out.error for name, left_out in tried.items()}
        self.regressor = min(self.errors, key=self.errors.__getitem__)
        fit, chosen, back = REGRESSORS[self.regressor](*recorded), tried[self.regressor], np.argsort(order)
        self.left_out = LeftOut(chosen.predicted[back], chosen.seen[back])
        self.constant_error = leave_out(*recorded, groups, fit_constant, objective).error
        self.predict: Callable[[FloatArray], FloatArray] = lambda points: objective(fit(points))
        self.shares = search(shares, lambda points: objective.terms(fit(points)), least_share)
        expected = fit(self.shares[None])
        self.expected_loss = float(objective(expected)[0])
        self.expected_losses = dict(zip(objective.weights, expected[0].tolist(), strict=True))

    @property
    def weights(self) -> dict[str, float]:
        """The mixture by stream, in the form of `mixing`."""
        return dict(zip(self.streams, self.shares.tolist(), strict=True))

    @property
    def error(self) -> float:
        """Root mean squared error of the objective on runs left out.

        Slightly optimistic, since it chose the regression, and for mixtures far from every run.
        """
        return self.left_out.error

    @property
    def rank_correlation(self) -> float:
        """Spearman's rank correlation of predicted and recorded objectives of runs left out."""
        return self.left_out.rank_correlation

    @property
    def rank_correlation_text(self) -> str:
        """The rank correlation for readers."""
        return "undefined" if math.isnan(self.rank_correlation) else f"{self.rank_correlation:.2f}"

    @property
    def best_run(self) -> int:
        """The run with the least objective."""
        return int(self.left_out.seen.argmin())

    @property
    def uniform_runs(self) -> list[int]:
        """Runs of the uniform mixture, to a hundredth."""
        return self._runs_near(np.full(len(self.streams), 1.0 / len(self.streams)))

    @property
    def same_runs(self) -> list[int]:
        """Runs of the fitted mixture, to a hundredth."""
        return self._runs_near(self.shares)

    def _runs_near(self, mixture: FloatArray) -> list[int]:
        return list(np.flatnonzero(np.abs(self.mixtures - mixture).max(axis=1) <= _NEAR).tolist())

    @property
    def gain(self) -> float:
        """The objective of the best run minus the expected objective."""
        return float(self.left_out.seen[self.best_run] - self.expected_loss)

    @property
    def explains_nothing(self) -> bool:
        """Whether runs left out are predicted no better than by the mean of the others, or in the wrong order."""
        return not (self.error < self.constant_error and self.rank_correlation > 0.0)

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
        return [*self._doubts_of_the_fit(), *self._doubts_of_the_runs()]

    def _doubts_of_the_fit(self) -> list[str]:
        if self.explains_nothing:
            return [
                f"The fit explains nothing: on runs left out its error is {self.error:.4f}, that of the mean of the "
                f"other runs {self.constant_error:.4f}, and the rank correlation of its predictions is "
                f"{self.rank_correlation_text}. Record more runs, or more different mixtures."
            ]
        if self.same_runs:
            seen = ", ".join(f"{self.runs[run]} ({self.left_out.seen[run]:.4f})" for run in self.same_runs)
            return [f"The mixture is that of {seen}: expect the same loss."]
        if self.gain <= self.error:
            return [
                f"The mixture cannot be told from the best run, {self.runs[self.best_run]}: expected loss "
                f"{self.expected_loss:.4f}, loss of that run {self.left_out.seen[self.best_run]:.4f}, and the "
                f"difference is within the error of {self.error:.4f}."
            ]
        return []

    def _doubts_of_the_runs(self) -> list[str]:
        doubts = []
        if len(self.runs) <= len(self.streams):
            doubts.append(
                f"{len(self.runs)} runs cannot tell {len(self.streams)} streams apart: record at least "
                f"{len(self.streams) + 1}, better twice as many as streams."
            )
        absent = [name for name, most in zip(self.streams, self.mixtures.max(axis=0), strict=True) if most == 0.0]
        if absent:
            doubts.append(f"No run trained on {absent}: the fit knows nothing of them and gives them no share.")
        if self.at_edge:
            doubts.append(f"The shares of {self.at_edge} lie at the edge of the runs: mixtures beyond may be better.")
        return doubts


def share_table(fitted: FittedMixture) -> Table:
    """Makes a table of the mixture beside the best run and the uniform one: a row for each stream and the objective."""
    compared = {"best run": fitted.best_run}
    if fitted.uniform_runs:
        compared["uniform run"] = fitted.uniform_runs[0]
    titles = ["share", "range\nof the runs", *(f"{title}\n{fitted.runs[run]}" for title, run in compared.items())]
    columns = [Column(title, justify="right") for title in titles]
    table = Table("stream", *columns, title=f"Best fixed mixture by {len(fitted.runs)} runs ({fitted.objective} loss)")
    least, most = fitted.mixtures.min(axis=0), fitted.mixtures.max(axis=0)
    for number, (name, share) in enumerate(fitted.weights.items()):
        others = [f"{fitted.mixtures[run, number]:.3f}" for run in compared.values()]
        table.add_row(name, f"{share:.3f}", f"{least[number]:.3f} … {most[number]:.3f}", *others)
    table.add_section()
    seen = [f"{fitted.left_out.seen[run]:.4f}\n(recorded)" for run in compared.values()]
    expected = f"{fitted.expected_loss:.4f} ± {fitted.error:.4f}\n(expected)"
    table.add_row(f"{fitted.objective} loss", expected, "", *seen)
    return table


def error_table(fitted: FittedMixture) -> Table:
    """Makes a table of the root mean squared error of each regression on runs left out."""
    table = Table("regression", Column("error", justify="right"), title="Error on runs left out")
    for name, error in fitted.errors.items():
        table.add_row(f"{name} (chosen)" if name == fitted.regressor else name, f"{error:.4f}")
    table.add_row("mean of the other runs", f"{fitted.constant_error:.4f}")
    return table


def summary(fitted: FittedMixture) -> list[str]:
    """Says how good the fit is and which mixtures it covers."""
    return [
        f"{fitted.regressor}: the rank correlation of predicted and recorded losses of runs left out is "
        f"{fitted.rank_correlation_text}; the losses of the runs span {np.ptp(fitted.left_out.seen):.4f}.",
        "The search covers combinations of the runs' mixtures; the fit knows nothing of others.",
    ]
