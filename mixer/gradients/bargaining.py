"""Nash bargaining between the streams' gradients: torchjd's solver with a start from which it does not fail."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LARGEST_GAP = 0.05  # between the streams' gains, which are equal at the solution
_LEAST_SHARE = 0.01


def bargain(solver: Any, shortest: Callable[[Tensor], Tensor], gramian: Tensor) -> Tensor:
    """Computes weights by which all streams gain equally.

    Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", arXiv:2202.01017, Claim 3.1: α with `G α = 1/α`
    (entry by entry), up to a factor. The factor is chosen such that `||Σ α_k g_k||² = Σ ||g_k||²`; the paper's step has
    a fixed length, torchjd's at most 1. The gradients' lengths drop out of the solution, so it is computed for
    gradients of length 1.

    torchjd solves a chain of convex problems, each linearised at the solution of the last, and starts from equal
    weights. Where these would raise a loss, the first problem is unbounded, and torchjd returns its start without an
    error (version 0.18: 1 in 10 for random gradients). The shortest convex combination (MGDA) raises no loss, so we
    start there.

    If no combination lowers all losses, there is no solution. Then the shortest combination, almost 0, is returned.

    Args:
        solver: A new `NashMTL(n_tasks=num_streams, max_norm=0, ...)`.
        shortest: Weights of the shortest convex combination, from the Gramian.
        gramian: float64 `[num_streams, num_streams]`, with a trace of 1 and a positive diagonal.

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
        with warnings.catch_warnings():  # of cvxpy, on the speed of repeated solutions
            warnings.simplefilter("ignore")
            # Any root of the Gramian will do: the solver only uses products.
            weights: Tensor = solver.weighting(vectors * values.clamp(min=0.0).sqrt())
        gains = weights * (cosines @ weights)
        if bool((weights > 0).all()) and float(gains.min()) >= (1.0 - _LARGEST_GAP) * float(gains.max()) > 0.0:
            weights = weights / lengths
            return weights / (weights @ gramian @ weights).sqrt()
    return shortest(gramian)
