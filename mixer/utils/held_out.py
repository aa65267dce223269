"""Draws of samples to hold out."""

import numpy as np

from mixer.utils.arrays import Int64Array


def hold_out(
    num_samples: int, num_held: int, seed: int, strata: Int64Array | None = None
) -> tuple[Int64Array, Int64Array]:
    """Draws the samples to hold out.

    Args:
        num_samples: Number of samples.
        num_held: Number of samples to hold out.
        seed: Seed of the draw.
        strata: int64 `[num_samples]`: the stratum of each sample. Each stratum gives its share, rounded so that the
            shares add up to `num_held`, and keeps one or more samples.

    Returns:
        Indices to keep and indices to hold out, int64, ascending and disjoint.

    Raises:
        ValueError: If a stratum would keep no sample.
    """
    order = np.random.default_rng(seed).permutation(num_samples)
    if strata is None:
        held = order[:num_held]
    else:
        sizes = np.bincount(strata)
        num_parts = np.count_nonzero(sizes)
        if num_held > num_samples - num_parts:
            raise ValueError(
                f"{num_held} of {num_samples} rows with {num_parts} different values cannot be held out, since one of "
                "each must stay for training: hold out fewer, or leave out stratify_by."
            )
        by_stratum = np.split(order[np.argsort(strata[order], kind="stable")], np.cumsum(sizes))
        held = np.concatenate([part[:quota] for part, quota in zip(by_stratum, _quotas(sizes, num_held), strict=False)])
    return np.setdiff1d(order, held), np.sort(held)


def _quotas(sizes: Int64Array, total: int) -> Int64Array:
    """Distributes `total` over strata by the largest remainders; each keeps one sample or more."""
    exact = sizes * total
    quotas, remainders = exact // sizes.sum(), exact % sizes.sum()
    by_remainder = np.argsort(-remainders, kind="stable")
    while num_left := total - quotas.sum():  # repeats only if strata with a single row cannot give their share
        with_more = by_remainder[quotas[by_remainder] < sizes[by_remainder] - 1]
        quotas[with_more[:num_left]] += 1
    result: Int64Array = quotas
    return result
