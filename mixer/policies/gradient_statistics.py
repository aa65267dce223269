"""What a gradient shows of the streams: K numbers of each, with the noise taken out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array


@dataclass(frozen=True)
class GradientStatistics:
    """The gradients of the streams at one step, before clipping: the gradient of stream k is that of its mean loss.

    The mean is over the items of the loss (tokens, for a language model), and a sample counts in it by its items. The
    variance is that of one sample (a row), not of one item: that of a mean over n samples is `variance / n`.

    Estimates are unbiased if what an item's gradient is on average does not depend on how many items its sample has;
    else they have a bias of order 1 / n, as any ratio of sums has.

    Args:
        gram: `[num_streams, num_streams]`: products `<g_i, g_j>` of the streams' gradients in this batch; those off the
            diagonal are unbiased, the diagonal is too large by `variance / counts`. NaN where a stream has no sample.
        variance: `[num_streams]`: `σ_k² = counts · (gram_kk - squared_norm)`, the mean squared distance of a sample's
            gradient from the stream's true one. NaN where there are less than two samples, or it was not measured.
        squared_norm: `[num_streams]`: estimate of `||g_k||²`, the mean product of two items of different samples: with
            L items and the sum x of their gradients in each sample, `(||Σx||² - Σ||x||²) / ((ΣL)² - ΣL²)`. May be
            negative. NaN where the variance is.
        counts: int64 `[num_streams]`: samples of each stream.
        shares: `[num_streams]`: share of each stream in the loss of the batch, its loss weight included; they sum to 1.
        gram_error: `[num_streams, num_streams]`: estimate of an upper bound on the standard deviation of `gram` around
            the products of the batch's own gradients, made of sketched norms and rough where `sketch_size` is below 16;
            0 where they were measured exactly.
    """

    gram: FloatArray
    variance: FloatArray
    squared_norm: FloatArray
    counts: Int64Array
    shares: FloatArray
    gram_error: FloatArray

    def part(self, ids: Sequence[int]) -> "GradientStatistics":
        """Gives the statistics of some of the streams, as if the others had not been there.

        Args:
            ids: Indices of the streams, in order.

        Returns:
            Theirs alone; their shares sum to 1, or are 0 where none of them was there.
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
        """`[num_streams, num_streams]`: cosines of the batch's gradients; noise draws those of small batches to 0."""
        with np.errstate(invalid="ignore", divide="ignore"):  # a gradient may be 0, or not be there
            norms = np.sqrt(np.diagonal(self.gram))
            cosines: FloatArray = self.gram / np.outer(norms, norms)
        return cosines

    @property
    def noise(self) -> tuple[float, float]:
        """Signal `||g||²` and noise `tr Σ` of the whole gradient, `g = Σ_k share_k g_k`.

        The counts are exact, so that only noise within the streams enters: `tr Σ = n Σ_k share_k² σ_k² / n_k`. A stream
        whose `σ_k²` is not known, as it has a single sample, is taken to have the mean of the others', weighted by
        shares. Both are NaN where no stream's is known, or a gradient is not finite.
        """
        active = self.counts > 0
        shares, counts, variance = self.shares[active], self.counts[active], self.variance[active]
        square = float(shares @ self.gram[np.ix_(active, active)] @ shares)
        is_known = np.isfinite(variance)
        weight = float(shares[is_known].sum())
        if not np.isfinite(square) or not weight > 0:
            return float("nan"), float("nan")
        mean = float(shares[is_known] @ variance[is_known]) / weight
        noise_of_batch = float((shares**2 * np.where(is_known, variance, mean) / counts).sum())
        return square - noise_of_batch, noise_of_batch * int(counts.sum())

    @property
    def conflict(self) -> float:
        """How far the streams conflict in this step, in [0, 1/2]; see `conflict_of`."""
        return conflict_of(self.gram, self._squared_norms)

    @property
    def alignment(self) -> float:
        """How far the streams are aligned in this step, in [0, 1]; see `alignment_of`."""
        return alignment_of(self.gram, self._squared_norms)

    @property
    def _squared_norms(self) -> FloatArray:
        """`[num_streams]`: those without noise, and those of the batch where noise was not measured."""
        return np.where(np.isfinite(self.squared_norm), self.squared_norm, np.diagonal(self.gram))


def conflict_of(gram: FloatArray, squared_norm: FloatArray) -> float:
    """Finds the least `c` for which `-c (||g_j||² + ||g_k||²) ≤ <g_j, g_k>` holds for all pairs of streams.

    Such streams are called c-conflicted (Li et al. 2025, PiKE, arXiv:2502.06244, sec. 3). Noise in the products makes
    it too large, as the worst pair counts: average over steps first.

    Args:
        gram: `[num_streams, num_streams]`: products of the streams' gradients; the diagonal is not looked at.
        squared_norm: `[num_streams]`: `||g_k||²`; estimates below 0 count as 0.

    Returns:
        `c` in [0, 1/2]; 0 where no pair conflicts, or none was measured.
    """
    half = np.maximum(squared_norm, 0.0) / 2  # halved, as the sum of two huge ones overflows
    return _of_worst_pair(-gram / 2, half[:, None] + half[None, :], most=0.5)


def alignment_of(gram: FloatArray, squared_norm: FloatArray) -> float:
    """Finds the least `c̄` for which `<g_j, g_k> ≤ c̄ ||g_j|| ||g_k||` holds for all pairs of streams.

    Such streams are called c̄-aligned (Li et al. 2025, PiKE, arXiv:2502.06244, sec. 3). It is the largest cosine.

    Args:
        gram: `[num_streams, num_streams]`: products of the streams' gradients; the diagonal is not looked at.
        squared_norm: `[num_streams]`: `||g_k||²`; estimates below 0 count as 0.

    Returns:
        `c̄` in [0, 1]; 0 where no pair is aligned, or none was measured.
    """
    norms = np.sqrt(np.maximum(squared_norm, 0.0))
    with np.errstate(invalid="ignore"):
        sizes = np.outer(norms, norms)
    return _of_worst_pair(gram, sizes, most=1.0)


def _of_worst_pair(products: FloatArray, sizes: FloatArray, most: float) -> float:
    """Gives the largest quotient over pairs, within [0, most]; a pair without size, or not measured, does not count."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        quotients = np.where((sizes > 0.0) & np.isfinite(sizes) & np.isfinite(products), products / sizes, 0.0)
    np.fill_diagonal(quotients, 0.0)
    return float(np.clip(quotients.max(initial=0.0), 0.0, most))


@overload
def signal_and_noise(
    square_of_sum: float, sum_of_squares: float, num_samples: float, num_squared: float
) -> tuple[float, float]: ...


@overload
def signal_and_noise(
    square_of_sum: FloatArray, sum_of_squares: FloatArray, num_samples: FloatArray, num_squared: FloatArray
) -> tuple[FloatArray, FloatArray]: ...


def signal_and_noise(
    square_of_sum: float | FloatArray,
    sum_of_squares: float | FloatArray,
    num_samples: float | FloatArray,
    num_squared: float | FloatArray,
) -> tuple[float | FloatArray, float | FloatArray]:
    """Parts the squared norm of a gradient into signal and noise, by how it falls apart into groups of samples.

    With `z_j` the sum of the gradients of the `s_j` samples of group j, `E||z_j||² = s_j² ||g||² + s_j σ²`, and the
    same holds for all samples together. Both equations give both unknowns, without bias. A group may be one sample, a
    micro-batch or what a rank has (McCandlish et al. 2018, arXiv:1812.06162, app. A.1, for two batches of each size).
    Where samples weigh by their items, items are to be counted instead, and `σ²` is that of one item.

    Args:
        square_of_sum: `||Σ_j z_j||²`, or one a stream.
        sum_of_squares: `Σ_j ||z_j||²`.
        num_samples: `n = Σ_j s_j`.
        num_squared: `Σ_j s_j²`.

    Returns:
        `||g||²` and `σ²`; NaN where there is but one group.

    Example:
        >>> signal_and_noise(4.0, 2.0, 2, 2)  # two samples with the same gradient, of norm 1
        (1.0, 0.0)
    """
    pairs = np.asarray(num_samples, dtype=np.float64) ** 2 - num_squared
    with np.errstate(invalid="ignore", divide="ignore"):
        signal = np.where(pairs > 0, (np.asarray(square_of_sum) - sum_of_squares) / pairs, np.nan)
        noise = np.asarray(square_of_sum) / num_samples - signal * num_samples
    if np.ndim(signal):
        return signal, noise
    return float(signal), float(noise)
