"""Nash's bargaining solution between streams' gradients, by torchjd's solver started where it cannot fail."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LARGEST_GAP = 0.05  # of the streams' gains, which are equal at the solution
_LEAST_SHARE = 0.01


def bargain(solver: Any, shortest: Callable[[Tensor], Tensor], gramian: Tensor) -> Tensor:
    """Finds weights by which each stream gains as much as any other, as long as their squared lengths' sum has it.

    Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", arXiv:2202.01017, Claim 3.1: α with `G α = 1/α`
    (entry by entry), up to a factor, which is chosen such that `||Σ α_k g_k||² = Σ ||g_k||²`: the paper's step has
    the same length all the time, torchjd's at most 1. How long each gradient is drops out of the solution, so that it
    is found for gradients of length 1.

    torchjd solves a chain of convex problems, each linearised at the last one's solution, and begins with equal weights
    (in the first step; with the last one's else). Where these would make a loss rise, which is where streams are at
    odds most, the first of them is unbounded: torchjd then gives what it began with, and tells nobody. The shortest
    combination (MGDA) makes no loss rise, so that it begins there.

    Where no combination lowers all losses there is no solution. The shortest one is next to nothing then and is taken.

    Args:
        solver: `NashMTL(n_tasks=num_streams, max_norm=0, ...)`, just made.
        shortest: Gives the weights of the shortest convex combination of gradients by their Gramian.
        gramian: float64 `[num_streams, num_streams]`, of trace 1 and no 0 on its diagonal.

    Returns:
        `[num_streams]`: the weights.
    """
    lengths = gramian.diagonal().sqrt()
    cosines = gramian / lengths.outer(lengths) / len(gramian)
    start = shortest(cosines)
    inside = (start + _LEAST_SHARE / len(start)) / (1.0 + _LEAST_SHARE)
    if bool((cosines @ inside > 0).all()):
        solver.weighting.prvs_alpha = (inside / (inside @ cosines @ inside).sqrt()).numpy()
        values, vectors = torch.linalg.eigh(cosines)
        # Any root of the Gramian will do: the solver looks at products and lengths alone.
        with warnings.catch_warnings():  # of cvxpy, that a second solution would be no faster: there is none
            warnings.simplefilter("ignore")
            weights: Tensor = solver.weighting(vectors * values.clamp(min=0.0).sqrt())
        gains = weights * (cosines @ weights)
        if bool((weights > 0).all()) and float(gains.min()) >= (1.0 - _LARGEST_GAP) * float(gains.max()) > 0.0:
            weights = weights / lengths
            return weights / (weights @ gramian @ weights).sqrt()
    return shortest(gramian)
