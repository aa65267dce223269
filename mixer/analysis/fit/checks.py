"""What a fit can be made of, and what not."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mixer.analysis.fit.objective import Objective
from mixer.analysis.fit.replicates import Groups, group_runs, numbered
from mixer.utils.arrays import FloatArray

LEAST_MIXTURES = 3


def check_names(names: Sequence[str] | None, count: int, option: str, word: str) -> tuple[str, ...]:
    """Gives names, numbered ones where none are given.

    Args:
        names: One name each, or `None`.
        count: How many there must be.
        option: What they were given as, for errors.
        word: What to call them where they are not given.

    Returns:
        The names.

    Raises:
        ValueError: If there are more or fewer, or a name twice.
    """
    given = tuple(f"{word} {number}" for number in range(1, count + 1)) if names is None else tuple(names)
    if len(given) != count:
        raise ValueError(f"{option}: expected {count} names, got {len(given)}: {list(given)}.")
    twice = [name for number, name in enumerate(given) if name in given[:number]]
    if twice:
        raise ValueError(f"{option}: {twice} are there twice; give each a name of its own.")
    return given


def check_shape(values: ArrayLike, option: str, columns: str) -> FloatArray:
    """Refuses what is no table of numbers.

    Args:
        values: The table.
        option: What it was given as, for errors.
        columns: What its columns are, for errors.

    Returns:
        float64 `[num_runs, num_columns]`.

    Raises:
        ValueError: If it is none, or empty.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{option} must be numbers [num_runs, {columns}], got {values!r}.") from None
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{option} must have the shape [num_runs, {columns}], got {list(array.shape)}.")
    return array


def normalised(mixtures: FloatArray, streams: Sequence[str], runs: Sequence[str]) -> FloatArray:
    """Brings mixtures to sum 1 and refuses those that are none.

    Args:
        mixtures: `[num_runs, num_streams]`: shares, or counts.
        streams: Names of the streams.
        runs: Names of the runs.

    Returns:
        `[num_runs, num_streams]` on the simplex.

    Raises:
        ValueError: If a share is negative or not finite, or a run has none.
    """
    for run, mixture in zip(runs, mixtures, strict=True):
        bad = [name for name, share in zip(streams, mixture, strict=True) if not (np.isfinite(share) and share >= 0.0)]
        if bad:
            raise ValueError(f"mixtures: shares must be finite and 0 or more, but those of {bad} in {run!r} are not.")
        if not 0.0 < mixture.sum() < np.inf:
            raise ValueError(f"mixtures: the shares of {run!r} sum to {mixture.sum()}; at least one must be positive.")
    shares: FloatArray = mixtures / mixtures.sum(axis=1, keepdims=True)
    return shares


def check_groups(groups: ArrayLike | None, shares: FloatArray, streams: Sequence[str]) -> Groups:
    """Gives which runs are of one mixture, and refuses too few mixtures to fit anything to.

    Args:
        groups: `[num_runs]`: a number for each mixture; `None` for those that are the same.
        shares: `[num_runs, num_streams]` on the simplex.
        streams: Names of the streams.

    Returns:
        `[num_runs]`: a number for each mixture.

    Raises:
        ValueError: If they are not one whole number a run, or there are too few different ones.
    """
    numbers = group_runs(shares) if groups is None else np.asarray(groups)
    if numbers.shape != (len(shares),) or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"groups must be {len(shares)} whole numbers, one for each run, got {groups!r}.")
    found = len(np.unique(numbers))
    if found < LEAST_MIXTURES:
        raise ValueError(
            f"A fit needs runs of at least {LEAST_MIXTURES} different mixtures, got {len(shares)} with {found}: record "
            f"runs with other fixed mixtures of {list(streams)}, at least one more than streams, better twice as many."
        )
    return numbered(numbers)


def check_losses(losses: FloatArray, names: Sequence[str], runs: Sequence[str], objective: Objective) -> None:
    """Refuses losses that are missing or not finite where they count.

    Args:
        losses: `[num_runs, num_losses]`.
        names: Names of the losses.
        runs: Names of the runs.
        objective: What counts.

    Raises:
        ValueError: If there are such; runs and losses are named.
    """
    bad = ~np.isfinite(losses) & objective.counts
    if not bad.any():
        return
    needed = [name for name, counts in zip(names, objective.counts, strict=True) if counts]
    found = []
    for run, row, flags in zip(runs, losses, bad, strict=True):
        wrong = [f"{names[number]}: {row[number]:g}" for number in np.flatnonzero(flags).tolist()]
        found += [f"{run} ({', '.join(wrong)})"] if wrong else []
    raise ValueError(
        f"losses: every run needs a finite one of each of {needed}, but these have not: {'; '.join(found)}. "
        "Leave these runs out, or take an objective of other losses."
    )
