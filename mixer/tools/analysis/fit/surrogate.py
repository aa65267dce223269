"""A regression of losses on mixtures: a law in shares and their roots, and a Gaussian process for what it misses."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np
import pandas as pd

from mixer.utils.arrays import FloatArray

# Distances of the law's floor from the least value, in ranges of the values: steep to almost linear.
_GAPS = np.logspace(-1.5, 1.5, 9)
_NOISES = np.geomspace(1e-6, 10.0, 15)  # variance of a run's noise, in mean variances of the runs' kernel
_LENGTHS = (0.35, 0.7, 1.4)  # of the process, in distances between roots of shares
_PARTS = (0.1, 0.3, 1.0, 3.0)  # variance of the process, relative to the law's
_SLOPES = (0.0, 3.0, 100.0)  # variance of the slope on smaller models' logs, likewise
_LEAST_VARIANCE = 1e-12
_MOST_ABOVE = math.log(10.0)  # of a prediction above the greatest loss, each above the floor: far away the law explodes

Base = Callable[[FloatArray], FloatArray]  # [num_mixtures] of [num_mixtures, num_streams]


@dataclass(frozen=True)
class Geometry:
    """What kernels of all losses share for two sets of mixtures.

    Args:
        first: `[num_first, num_streams]` on the simplex.
        second: `[num_second, num_streams]`.
    """

    first: FloatArray
    second: FloatArray
    _near: dict[float, FloatArray] = field(default_factory=dict)

    @cached_property
    def law(self) -> FloatArray:
        """Covariances by the law `[num_first, num_second]`."""
        return np.asarray(self.first @ self.second.T + self._products)

    @cached_property
    def _products(self) -> FloatArray:
        return np.asarray(np.sqrt(self.first) @ np.sqrt(self.second).T)

    def near(self, length: float) -> FloatArray:
        """Covariances by a process of this length, likewise."""
        if length not in self._near:
            ends = [(np.sqrt(points) ** 2).sum(axis=1) for points in (self.first, self.second)]
            squares = ends[0][:, None] + ends[1] - 2.0 * self._products
            self._near[length] = np.exp(-np.maximum(squares, 0.0) / (2.0 * length**2))
        return self._near[length]


@dataclass(frozen=True)
class Kernel:
    """Covariance of two mixtures' log losses above the floor.

    The law is linear in shares and their roots, since the first samples of a source teach most. The process sees
    distances between roots.

    Args:
        length: Length of the process.
        part: Its variance.
        slope: Variance of the slope on `base`.
        base: Predicts smaller models' logs.
        scale: What all is divided by.
    """

    length: float
    part: float
    slope: float = 0.0
    base: Base | None = None
    scale: float = 1.0

    def __call__(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """Gives the covariances `[num_first, num_second]`."""
        return self.between(Geometry(first, second))

    def between(self, mixtures: Geometry) -> FloatArray:
        """Gives the covariances of two sets of mixtures."""
        found = mixtures.law + self.part * mixtures.near(self.length)
        if self.slope and self.base is not None:
            found = found + self.slope * np.outer(self.base(mixtures.first), self.base(mixtures.second))
        return np.asarray(found / self.scale)

    def diagonal(self, points: FloatArray) -> FloatArray:
        """Gives the variance of each mixture `[num_points]`."""
        found = (points**2 + points).sum(axis=1) + self.part
        if self.slope and self.base is not None:
            found = found + self.slope * self.base(points) ** 2
        return np.asarray(found / self.scale)


@dataclass(frozen=True)
class Surrogate:
    """Predicts a loss of mixtures: `L(w) = floor + exp(g(w))`, where `g` is a Gaussian process on shares and roots.

    The law of Data Mixing Laws (Ye et al., arXiv:2403.16952) with roots of shares and interactions; universal kriging
    (Rasmussen & Williams 2006, 2.7).

    Args:
        mixtures: `[num_mixtures, num_streams]` on the simplex.
        logs: `[num_mixtures]`: logs of their losses above the floor.
        floor: The floor.
        kernel: The kernel.
        inverse: `[num_mixtures, num_mixtures]`: inverse of the logs' covariance, in units of the process's variance.
        noise: Variance of a run's noise, likewise.
    """

    mixtures: FloatArray
    logs: FloatArray
    floor: float
    kernel: Kernel
    inverse: FloatArray
    noise: float

    @property
    def precision(self) -> FloatArray:
        """The inverse covariance without its part along the unknown mean."""
        along = self.inverse.sum(axis=0)
        return np.asarray(self.inverse - np.outer(along, along) / along.sum())

    @cached_property
    def variance(self) -> float:
        """Variance of the process."""
        return max(float(self.logs @ self.precision @ self.logs) / (len(self.logs) - 1), _LEAST_VARIANCE)

    def _known(self, between: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gives the losses above the floor, and what the runs and the unknown mean say of each point."""
        along = self.inverse.sum(axis=0)
        mean = float(along @ self.logs / along.sum())
        known = between @ self.inverse
        above = np.exp(np.minimum(mean + known @ (self.logs - mean), self.logs.max() + _MOST_ABOVE))
        return above, known, (1.0 - known.sum(axis=1)) / np.sqrt(along.sum())

    def posterior(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Gives losses `[num_points]` and their covariance `[num_points, num_points]`, without the noise of a run."""
        between = self.kernel(points, self.mixtures)
        above, known, unknown = self._known(between)
        explained = known @ between.T
        covariance = self.kernel(points, points) - explained + np.outer(unknown, unknown)
        return self.floor + above, covariance * np.outer(above, above) * self.variance

    def moments(
        self, points: FloatArray, *, of_runs: bool = False, geometry: Geometry | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Gives losses `[num_points]` and their standard deviations.

        Args:
            points: `[num_points, num_streams]`.
            of_runs: Whether deviations have the noise of a run.
            geometry: Of the points and `mixtures`, if other losses share it.
        """
        between = self.kernel.between(geometry or Geometry(points, self.mixtures))
        above, known, unknown = self._known(between)
        explained = (known * between).sum(axis=1)
        variances = np.maximum(self.kernel.diagonal(points) - explained + unknown**2, 0.0)
        return self.floor + above, above * np.sqrt((variances + self.noise * of_runs) * self.variance)

    def believing(self, points: FloatArray) -> "Surrogate":
        """Takes its own predictions of mixtures `[num_points, num_streams]` for runs."""
        logs = np.log(self.moments(points)[0] - self.floor)
        mixtures = np.concatenate([self.mixtures, points])
        covariance = self.kernel(mixtures, mixtures)
        size = len(self.mixtures)
        covariance[:size, :size] = np.linalg.inv(self.inverse)
        covariance[size:, size:] += self.noise * np.eye(len(points))
        inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        return replace(self, mixtures=mixtures, logs=np.concatenate([self.logs, logs]), inverse=inverse)


def fit_surrogates(
    mixtures: FloatArray, losses: FloatArray, counts: FloatArray, smaller: Sequence[Surrogate] | None = None
) -> list[Surrogate]:
    """Fits a regression for each loss.

    Floor, lengths, variances and noise are those of a grid with the greatest restricted likelihood (Patterson &
    Thompson, Biometrika 1971): a fit has no starting point, and one decomposition of a kernel serves all losses.

    Args:
        mixtures: `[num_mixtures, num_streams]` on the simplex.
        losses: `[num_mixtures, num_losses]`; NaN where a mixture has none.
        counts: `[num_mixtures]`: how many runs a mixture is the mean of.
        smaller: The fits of smaller models, for each loss, which inform these.
    """
    found: dict[int, Surrogate] = {}
    is_there = np.isfinite(losses)
    together = pd.factorize(pd.Series([row.tobytes() for row in is_there.T]))[0]
    if smaller is not None:
        together = np.arange(losses.shape[1])  # each has a kernel of its own
    for number in range(together.max() + 1):
        columns = np.flatnonzero(together == number)
        rows = is_there[:, columns[0]]
        base = None if smaller is None else _standard(smaller[columns[0]], mixtures[rows])
        fits = _fit(mixtures[rows], losses[rows][:, columns], counts[rows], base)
        found |= dict(zip(columns.tolist(), fits, strict=True))
    return [found[number] for number in range(losses.shape[1])]


def _standard(smaller: Surrogate, points: FloatArray) -> Base:
    def logs(mixtures: FloatArray) -> FloatArray:
        return np.asarray(np.log(smaller.moments(mixtures)[0] - smaller.floor))

    seen = logs(points)
    centre, width = float(seen.mean()), float(seen.std()) or 1.0
    return lambda mixtures: np.asarray((logs(mixtures) - centre) / width)


def _fit(points: FloatArray, values: FloatArray, counts: FloatArray, base: Base | None) -> list[Surrogate]:
    width = np.ptp(values, axis=0)
    floors = values.min(axis=0) - _GAPS[:, None] * np.where(width > 0.0, width, 1.0)  # [num_gaps, num_losses]
    logs = np.log(values[:, None] - floors)
    grid = product(_LENGTHS, _PARTS, (0.0,) if base is None else _SLOPES)
    kernels = [Kernel(length, part, slope, base) for length, part, slope in grid]
    geometry = Geometry(points, points)
    scored = [_deviances(kernel.between(geometry), logs, counts) for kernel in kernels]
    deviances = np.stack([deviances for deviances, _ in scored])  # [num_kernels, num_noises, num_gaps, num_losses]
    found = []
    for column in range(values.shape[1]):
        own = deviances[..., column]
        number, noise, gap = np.unravel_index(own.argmin(), own.shape)
        kernel = replace(kernels[number], scale=scored[number][1])
        noisy = kernel.between(geometry) + np.diag(_NOISES[noise] / counts)
        inverse = np.asarray(np.linalg.inv(noisy), dtype=np.float64)
        floor = float(floors[gap, column])
        found.append(Surrogate(points, logs[:, gap, column], floor, kernel, inverse, float(_NOISES[noise])))
    return found


def _deviances(covariance: FloatArray, logs: FloatArray, counts: FloatArray) -> tuple[FloatArray, float]:
    """Gives deviances `[num_noises, num_gaps, num_losses]` of the losses, and the covariance's mean variance."""
    roots, num_free = np.sqrt(counts), len(counts) - 1
    centring = np.eye(len(counts)) - np.outer(roots, roots) / counts.sum()
    matrix = centring @ (roots[:, None] * covariance * roots) @ centring
    values, vectors = np.linalg.eigh(matrix)
    order = np.argsort(np.abs(roots @ vectors))[:-1]  # all but the direction of the mean
    values, vectors = np.maximum(values[order], 0.0), vectors[:, order]
    scale = float(values.mean()) or 1.0
    spread = values / scale + _NOISES[:, None]  # [num_noises, num_free]
    flat = logs.reshape(len(counts), -1)
    squares = (1.0 / spread) @ ((vectors.T @ (roots[:, None] * flat)) ** 2)
    deviances = num_free * np.log(np.maximum(squares / num_free, _LEAST_VARIANCE))
    # Of the losses and not of their logs: the last term is the change of variables.
    deviances += np.log(spread).sum(axis=1)[:, None] + 2.0 * num_free * np.average(flat, axis=0, weights=counts)
    return deviances.reshape(-1, *logs.shape[1:]), scale


def rank_correlation(predicted: FloatArray, seen: FloatArray) -> float:
    """Spearman's rank correlation; NaN if one of them is constant."""
    if np.ptp(predicted) == 0.0 or np.ptp(seen) == 0.0:
        return math.nan
    return float(pd.Series(predicted).rank().corr(pd.Series(seen).rank()))
