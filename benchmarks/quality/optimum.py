"""The best weights of the synthetic mixture, fixed and changing, by its exact expected losses."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.quality.synthetic import Problem

_LATTICE = 12  # the search starts at the best of the mixtures whose weights are multiples of 1/12
_FIRST_MOVE, _LAST_MOVE = 1 / 24, 1e-4
_NUM_PIECES = 12  # in which changing weights are sought
_NUM_ITERATIONS, _RATE = 100, 0.1


@dataclass(frozen=True)
class Optimum:
    """The weights whose expected average loss is least.

    Args:
        weights: `[num_pieces][num_streams]`: one piece if they are fixed, else pieces of the run of equal length.
        losses: `[num_streams]`: expected losses at the end.
    """

    weights: list[list[float]]
    losses: list[float]

    @property
    def average(self) -> float:
        """The average loss."""
        return sum(self.losses) / len(self.losses)


def best_fixed(problem: Problem, num_steps: int, batch: int, learning_rate: float) -> Optimum:
    """Searches the simplex: a lattice, then moves of weight between two streams, halved where none is better.

    Args:
        problem: The problem.
        num_steps: Steps of a run.
        batch: Samples of a step.
        learning_rate: The learning rate.

    Returns:
        The best fixed weights, to 1e-4.
    """

    def best_of(mixtures: Tensor) -> tuple[Tensor, Tensor, float]:
        losses = problem.expected_losses(mixtures.unsqueeze(-2), num_steps, batch, learning_rate)
        best = int(losses.mean(dim=-1).argmin())
        return mixtures[best], losses[best], float(losses[best].mean())

    num_streams = len(problem.noise)
    moves = torch.stack([_move(num_streams, *pair) for pair in itertools.permutations(range(num_streams), 2)])
    weights, losses, least = best_of(lattice(num_streams, _LATTICE))
    length = _FIRST_MOVE
    while length > _LAST_MOVE:
        near = weights + length * moves
        near = near[(near >= 0.0).all(dim=-1)]
        found = best_of(near)
        if found[2] < least:
            weights, losses, least = found
        else:
            length /= 2
    return Optimum([weights.tolist()], losses.tolist())


def lattice(num_streams: int, parts: int) -> Tensor:
    """Lists the mixtures whose weights are multiples of `1/parts`.

    Args:
        num_streams: Number of streams.
        parts: Number of parts.

    Returns:
        float64 `[num_mixtures, num_streams]`.
    """
    # Bars between stars: where they stand says how many stars each stream has.
    rows = []
    for bars in itertools.combinations(range(parts + num_streams - 1), num_streams - 1):
        ends = (-1, *bars, parts + num_streams - 1)
        rows.append([right - left - 1 for left, right in itertools.pairwise(ends)])
    return torch.tensor(rows, dtype=torch.float64) / parts


def _move(num_streams: int, source: int, target: int) -> Tensor:
    move = torch.zeros(num_streams, dtype=torch.float64)
    move[source], move[target] = -1.0, 1.0
    return move


def best_changing(
    problem: Problem, num_steps: int, batch: int, learning_rate: float, fixed: Optimum | None = None
) -> Optimum:
    """Descends from the best fixed weights to weights of their own for each twelfth of the run.

    It is about the least that a policy can come to that leaves the losses as they are, up to a local optimum, the
    coarseness of the pieces, and what can be made of the noise of a single run.

    Args:
        problem: The problem.
        num_steps: Steps of a run.
        batch: Samples of a step.
        learning_rate: The learning rate.
        fixed: What `best_fixed` gave, if it is known.

    Returns:
        The best weights found.
    """
    fixed = fixed or best_fixed(problem, num_steps, batch, learning_rate)
    start = torch.tensor(fixed.weights, dtype=torch.float64).clamp(min=1e-3).log()
    logits = start.repeat(_NUM_PIECES, 1).requires_grad_()
    piece_of = torch.arange(num_steps) * _NUM_PIECES // num_steps
    optimizer = torch.optim.Adam([logits], lr=_RATE)
    best = fixed
    for _ in range(_NUM_ITERATIONS):
        weights = logits.softmax(dim=-1)
        losses = problem.expected_losses(weights[piece_of], num_steps, batch, learning_rate)
        average = losses.mean()
        if average.item() < best.average:
            best = Optimum(weights.tolist(), losses.tolist())
        optimizer.zero_grad()
        average.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return best
