"""Gradients of the streams, K numbers each and corrected for noise, and the noise of the whole one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mixer.measurements.measurement import Measurement, Needs
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import wrong_type, wrong_value

# Time of a step that measures three streams relative to a plain one, by benchmarks/speed/probe.py; eight streams:
# up to 1.08 and 1.13.
STEP_WITH_GRADIENTS = 1.05
STEP_WITH_VARIANCES = 1.11
Number = TypeVar("Number", float, FloatArray)


class Noise(NamedTuple):
    """Signal and noise of the gradient of the whole mixture.

    Attributes:
        squared_norm: Unbiased estimate of `||g||²`, the squared norm of the true gradient.
        variance: Estimate of `tr Σ`, the variance of a single sample's gradient.
    """

    squared_norm: float
    variance: float

    @property
    def is_known(self) -> bool:
        """Whether both are finite."""
        return math.isfinite(self.squared_norm) and math.isfinite(self.variance)


@dataclass(frozen=True)
class GradientStatistics:
    """Per-stream gradients at one step, before clipping: the gradient of stream k is that of its mean loss.

    The mean is over the items of the loss (tokens, for a language model), and a sample is weighted by its items. The
    variance is that of one sample (a row), not of one item: that of a mean over n samples is `variance / n`.

    Estimates are unbiased if an item's expected gradient does not depend on the number of items of its sample;
    otherwise they have a bias of order 1 / n, as any ratio of sums.

    Args:
        gram: `[num_streams, num_streams]`: products `<g_i, g_j>` of the streams' gradients in this batch; those off the
            diagonal are unbiased, the diagonal is too large by `variance / counts`. NaN for a stream without a sample.
        variance: `[num_streams]`: `σ_k² = counts · (gram_kk - squared_norm)`, the mean squared distance of a sample's
            gradient from the stream's true one. NaN with less than two samples, or if not measured.
        squared_norm: `[num_streams]`: estimate of `||g_k||²`, the mean product of two items of different samples: with
            L items and the sum x of their gradients in each sample, `(||Σx||² - Σ||x||²) / ((ΣL)² - ΣL²)`. May be
            negative. NaN if the variance is.
        counts: int64 `[num_streams]`: samples of each stream.
        shares: `[num_streams]`: share of each stream in the loss of the batch, including loss weights; they sum to 1.
        gram_error: `[num_streams, num_streams]`: estimated upper bound on the standard deviation of `gram` around the
            products of the batch's own gradients, from sketched norms, rough for a `sketch_size` below 16; 0 for exact
            measurements.
    """

    gram: FloatArray
    variance: FloatArray
    squared_norm: FloatArray
    counts: Int64Array
    shares: FloatArray
    gram_error: FloatArray

    def part(self, ids: Sequence[int]) -> "GradientStatistics":
        """Returns the statistics of some of the streams, as if the others were absent.

        Args:
            ids: Indices of the streams, in order.

        Returns:
            Their statistics; their shares sum to 1, or are 0 if none of them was present.
        """
        index = np.asarray(ids, dtype=np.int64)
        pairs = np.ix_(index, index)
        shares = self.shares[index]
        total = float(shares.sum())
        return GradientStatistics(
            gram=self.gram[pairs],
            variance=self.variance[index],
            squared_norm=self.squared_norm[index],
            counts=self.counts[index],
            shares=shares / total if total > 0 else shares,
            gram_error=self.gram_error[pairs],
        )

    @property
    def cosines(self) -> FloatArray:
        """`[num_streams, num_streams]`: cosines of the batch's gradients; noise biases them towards 0."""
        with np.errstate(invalid="ignore", divide="ignore"):  # a gradient may be 0 or missing
            norms = np.sqrt(np.diagonal(self.gram))
            cosines: FloatArray = self.gram / np.outer(norms, norms)
        return cosines

    @property
    def noise(self) -> Noise:
        """Signal `||g||²` and noise `tr Σ` of the whole gradient, `g = Σ_k share_k g_k`.

        The counts are exact, so only noise within the streams counts: `tr Σ = n Σ_k share_k² σ_k² / n_k`. An unknown
        `σ_k²` (a single sample) is replaced by the share-weighted mean of the others. Both are NaN if no stream's
        variance is known, or a gradient is not finite.
        """
        active = self.counts > 0
        shares, counts, variance = self.shares[active], self.counts[active], self.variance[active]
        square = float(shares @ self.gram[np.ix_(active, active)] @ shares)
        is_known = np.isfinite(variance)
        weight = float(shares[is_known].sum())
        if not np.isfinite(square) or not weight > 0:
            return Noise(math.nan, math.nan)
        mean = float(shares[is_known] @ variance[is_known]) / weight
        noise_of_batch = float((shares**2 * np.where(is_known, variance, mean) / counts).sum())
        return Noise(square - noise_of_batch, noise_of_batch * int(counts.sum()))


@dataclass(frozen=True)
class Gradients(Measurement[GradientStatistics]):
    """Per-stream gradients of the last step.

    Args:
        variance: Whether to measure the variance over samples too, at a higher cost.
        interval_steps: Steps between measurements.
    """

    requires = frozenset({"several streams in a step"})

    variance: bool = False
    interval_steps: int = 1

    def cost(self) -> str:
        """Returns the time of a measured step; see `Measurement.cost`."""
        steps = "each step" if self.interval_steps == 1 else f"1 step in {self.interval_steps}"
        return f"{steps} takes {STEP_WITH_VARIANCES if self.variance else STEP_WITH_GRADIENTS:.2f} times as long"

    @staticmethod
    def part(result: GradientStatistics, streams: Sequence[int]) -> GradientStatistics:
        """Returns the statistics of some of the streams; see `Measurement.part`."""
        return result.part(streams)

    @staticmethod
    def reported(result: Any, streams: Sequence[str]) -> GradientStatistics:
        """Refuses anything but the result of a probe of these streams; see `Measurement.reported`."""
        if not isinstance(result, GradientStatistics):
            raise wrong_type(
                "observe", f": gradients must be the result of GradientProbe.finish(), got a {type(result).__name__}."
            )
        if len(result.counts) != len(streams):
            raise wrong_value(
                "observe", f": gradients must cover the streams {list(streams)}, got {len(result.counts)} streams."
            )
        return result


@dataclass(frozen=True)
class GradientNoise(Measurement[Noise]):
    """Signal and noise of the last step's gradient.

    Several ranks measure it in every step, by the differences between their gradients; a single rank by `Gradients`.

    Args:
        interval_steps: Steps between measurements on a single rank.
    """

    requires = frozenset({"whole gradients"})
    shown_by = Gradients

    interval_steps: int = 1

    @staticmethod
    def shown(result: GradientStatistics) -> Noise | None:
        """Returns the noise that the streams' gradients show, if it is finite; see `Measurement.shown`."""
        return result.noise if result.noise.is_known else None

    def cost(self) -> str:
        """Returns that of `Gradients`, on a single rank; see `Measurement.cost`."""
        return f"{Gradients(True, self.interval_steps).cost()} on a single rank"


def probe_requests(needs: Needs, world_size: int) -> list[Gradients]:
    """Returns what a rule asks of the gradient probe; several ranks measure noise by their differences instead."""
    own = [need for need in needs if isinstance(need, Gradients)]
    noise = [need for need in needs if isinstance(need, GradientNoise)] if world_size == 1 else []
    return [*own, *(Gradients(True, need.interval_steps) for need in noise)]


def conflict_of(gram: FloatArray, squared_norm: FloatArray) -> float:
    """Returns the least `c` with `-c (||g_j||² + ||g_k||²) ≤ <g_j, g_k>` for all pairs of streams.

    Such streams are called c-conflicted (Li et al. 2025, PiKE, arXiv:2502.06244, sec. 3). Noise in the products makes
    it too large, as the worst pair counts: average over steps first.

    Args:
        gram: `[num_streams, num_streams]`: products of the streams' gradients; the diagonal is ignored.
        squared_norm: `[num_streams]`: `||g_k||²`; estimates below 0 count as 0.

    Returns:
        `c` in [0, 1/2]; 0 if no pair conflicts, or none was measured.
    """
    half = np.maximum(squared_norm, 0.0) / 2  # halved, as the sum of two huge norms overflows
    return _of_worst_pair(-gram / 2, half[:, None] + half[None, :], most=0.5)


def alignment_of(gram: FloatArray, squared_norm: FloatArray) -> float:
    """Returns the least `c̄` with `<g_j, g_k> ≤ c̄ ||g_j|| ||g_k||` for all pairs of streams: the largest cosine.

    Such streams are called c̄-aligned (Li et al. 2025, PiKE, arXiv:2502.06244, sec. 3).

    Args:
        gram: `[num_streams, num_streams]`: products of the streams' gradients; the diagonal is ignored.
        squared_norm: `[num_streams]`: `||g_k||²`; estimates below 0 count as 0.

    Returns:
        `c̄` in [0, 1]; 0 if no pair is aligned, or none was measured.
    """
    norms = np.sqrt(np.maximum(squared_norm, 0.0))
    with np.errstate(invalid="ignore"):
        sizes = np.outer(norms, norms)
    return _of_worst_pair(gram, sizes, most=1.0)


def _of_worst_pair(products: FloatArray, sizes: FloatArray, most: float) -> float:
    """Largest quotient over pairs, within [0, most]; a pair of size 0, or not measured, is ignored."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        quotients = np.where((sizes > 0.0) & np.isfinite(sizes) & np.isfinite(products), products / sizes, 0.0)
    np.fill_diagonal(quotients, 0.0)
    return float(np.clip(quotients.max(initial=0.0), 0.0, most))


def signal_and_noise(
    square_of_sum: Number, sum_of_squares: Number, num_samples: Number, num_squared: Number
) -> tuple[Number, Number]:
    """Separates signal and noise in the squared norm of a gradient, from the norms of groups of samples.

    With `z_j` the sum of the gradients of the `s_j` samples of group j, `E||z_j||² = s_j² ||g||² + s_j σ²`, and the
    same holds for all samples together. The two equations determine both unknowns, without bias. A group may be one
    sample, a micro-batch or the samples of a rank (McCandlish et al. 2018, arXiv:1812.06162, app. A.1, for two batches
    of each size). If samples are weighted by their items, count items instead; `σ²` is then that of one item.

    Args:
        square_of_sum: `||Σ_j z_j||²`, a number or one per stream.
        sum_of_squares: `Σ_j ||z_j||²`.
        num_samples: `n = Σ_j s_j`.
        num_squared: `Σ_j s_j²`.

    Returns:
        `||g||²` and `σ²`; NaN for a single group.

    Example:
        >>> signal_and_noise(4.0, 2.0, 2, 2)  # two samples with the same gradient, of norm 1
        (1.0, 0.0)
    """
    pairs = np.asarray(num_samples, dtype=np.float64) ** 2 - num_squared
    with np.errstate(invalid="ignore", divide="ignore"):
        signal = np.where(pairs > 0, (np.asarray(square_of_sum) - sum_of_squares) / pairs, np.nan)
        noise = np.asarray(square_of_sum) / num_samples - signal * num_samples
    separated: Any = (signal, noise) if np.ndim(signal) else (float(signal), float(noise))
    result: tuple[Number, Number] = separated
    return result
