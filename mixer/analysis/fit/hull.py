"""The mixtures that runs cover, and the best of them by a deterministic search."""

from collections.abc import Callable, Iterator

import numpy as np

from mixer.analysis.fit.libraries import library
from mixer.utils.arrays import FloatArray

_BLOCK = 4096
# Concentrations of the Dirichlet distributions drawn from: near one run's mixture, up to all over those drawn together.
_LEAST_CONCENTRATION, _MOST_CONCENTRATION = 0.1, 1.0
# Four eighths of the draws from all that is covered, then an eighth each ever closer to the best.
_STEPS = (1.0, 1.0, 1.0, 1.0, 0.5, 0.25, 0.125, 0.0625)


def search(
    mixtures: FloatArray,
    predict: Callable[[FloatArray], FloatArray],
    least_share: float,
    num_candidates: int,
    num_best: int,
    seed: int,
) -> FloatArray:
    """Averages the best of many mixtures, as RegMix does (2407.01492): steadier than the single best one.

    Candidates are the runs' own mixtures, draws from all that they cover, and (other than in RegMix, since draws alone
    hardly come near the best of ten streams or more) draws moved toward the best ones so far, ever closer. An average
    of mixtures that the runs cover is one of them too.

    Args:
        mixtures: `[num_runs, num_streams]`: those of the runs.
        predict: Gives the objective `[num_mixtures]` of mixtures `[num_mixtures, num_streams]`.
        least_share: Least share of every stream.
        num_candidates: How many mixtures are tried.
        num_best: How many of the best are averaged.
        seed: Seed of the draws.

    Returns:
        `[num_streams]`: the average.

    Raises:
        ValueError: If no mixture that the runs cover gives every stream the least share.
    """
    inner = _even_mixture(mixtures, least_share) if least_share > 0.0 else None
    best, values = np.empty((0, mixtures.shape[1])), np.empty(0)
    for block, step in _blocks(mixtures, num_candidates, seed):
        moved = block if step == 1.0 else (1.0 - step) * np.resize(best, block.shape) + step * block
        allowed = moved if inner is None else _pull(moved, inner, least_share)
        best, values = np.concatenate([best, allowed]), np.concatenate([values, predict(allowed)])
        order = np.argsort(values, kind="stable")[:num_best]
        best, values = best[order], values[order]
    average: FloatArray = best.mean(axis=0)
    shares: FloatArray = average / average.sum()
    return shares


def _blocks(mixtures: FloatArray, num_candidates: int, seed: int) -> Iterator[tuple[FloatArray, float]]:
    """Draws from the convex hull of mixtures, after them.

    Every point of the hull is a combination of no more of the runs than there are streams (Carathéodory's theorem), so
    combinations of so many, with weights from Dirichlet distributions, reach all of it. They treat all streams alike.

    Yields:
        Mixtures `[count, num_streams]`, and what is kept of their distance from the best ones so far; the rest of the
        way they are moved toward them.
    """
    yield mixtures, 1.0
    generator = np.random.default_rng(seed)
    num_runs, num_streams = mixtures.shape
    num_members = min(num_runs, num_streams)
    for start in range(0, num_candidates, _BLOCK):
        size = min(_BLOCK, num_candidates - start)
        members = np.argsort(generator.random((size, num_runs)), axis=1)[:, :num_members]
        logs = generator.uniform(np.log(_LEAST_CONCENTRATION), np.log(_MOST_CONCENTRATION), (size, 1))
        weights = generator.standard_gamma(np.broadcast_to(np.exp(logs), members.shape))
        combinations = np.zeros((size, num_runs))
        np.put_along_axis(combinations, members, weights / weights.sum(axis=1, keepdims=True), axis=1)
        yield combinations @ mixtures, _STEPS[len(_STEPS) * start // num_candidates]


def _even_mixture(mixtures: FloatArray, least_share: float) -> FloatArray:
    """Finds the mixture that runs cover whose least share is largest, by a linear program."""
    num_runs, num_streams = mixtures.shape
    optimize = library("scipy.optimize", "least_share", "adaptive-mixer[fit]", "leave it at 0")
    solved = optimize.linprog(
        np.append(np.zeros(num_runs), -1.0),  # the least share, made large
        A_ub=np.hstack([-mixtures.T, np.ones((num_streams, 1))]),
        b_ub=np.zeros(num_streams),
        A_eq=np.append(np.ones(num_runs), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, None)] * num_runs + [(None, None)],
    )
    even: FloatArray = np.asarray(solved.x[:-1]) @ mixtures
    if even.min() < least_share - 1e-9:
        raise ValueError(
            f"least_share={least_share:g}: no mixture that the runs cover gives every stream as much; {even.min():.4f} "
            "is the most. Lower it, or record runs in which the scarce streams have more."
        )
    return even


def _pull(points: FloatArray, inner: FloatArray, least_share: float) -> FloatArray:
    """Moves points toward one that has the least shares, no farther than until they have them too."""
    missing, room = least_share - points, inner - points
    steps = np.divide(missing, room, out=np.zeros_like(points), where=(missing > 0.0) & (room > 0.0))
    step = np.minimum(steps.max(axis=1, keepdims=True), 1.0)
    pulled: FloatArray = points + step * room
    return pulled
