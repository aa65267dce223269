"""A bargain whose solver fails without a word."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from mixer.gradients.conflict import bargain

# Two gradients of length 1 / sqrt(2) at a right angle: both gain alike with weights that are equal.
GRAMIAN = torch.eye(2, dtype=torch.float64) / 2
SHORTEST = torch.tensor([0.4, 0.6], dtype=torch.float64)  # not what a bargain would be, to be told from it


def solver(first: float, second: float) -> SimpleNamespace:
    class Weighting:
        prvs_alpha = None

        def __call__(self, rows: Tensor) -> Tensor:
            return torch.tensor([first, second], dtype=torch.float64)

    return SimpleNamespace(weighting=Weighting())


def shortest(gramian: Tensor) -> Tensor:
    return SHORTEST


def test_what_is_a_bargain_is_taken() -> None:
    # By weights of one size; their length is that of the two: 2 w^2 / 2 = 1.
    assert bargain(solver(3.0, 3.0), shortest, GRAMIAN).tolist() == pytest.approx([1.0, 1.0])
    # Gains are as the squares of the weights: 1 to 1.04 is within a twentieth.
    assert bargain(solver(1.0, 1.04**0.5), shortest, GRAMIAN)[1] > 1.0


@pytest.mark.parametrize("weights", [(1.0, 1.1**0.5), (1.0, 2.0), (0.0, 1.0), (-1.0, -1.0), (float("nan"), 1.0)])
def test_what_is_none_gives_way_to_the_shortest(weights: tuple[float, float]) -> None:
    assert bargain(solver(*weights), shortest, GRAMIAN).tolist() == SHORTEST.tolist()
