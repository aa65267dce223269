"""Several runs of each mixture, as of other seeds."""

import itertools

import numpy as np
import pytest

from mixer.analysis.fit.mixture import group_runs
from mixer.analysis.fit.regressors import fit_exponential


def law(mixtures: np.ndarray) -> np.ndarray:
    return (mixtures + 0.1) ** -0.5


def test_runs_count_as_often_as_there_are() -> None:
    # Three runs of a mixture say the same as three runs of their mean loss, though their spread is another.
    mixtures = np.random.default_rng(0).dirichlet(np.ones(3), 8)[[0, 0, 0, 1, 2, 3, 4, 5, 6, 7]]
    losses = law(mixtures)
    spread = np.zeros_like(losses)
    spread[:3] = [[0.2], [-0.3], [0.1]]
    points = np.random.default_rng(1).dirichlet(np.ones(3), 20)
    one, other = fit_exponential(mixtures, losses + spread), fit_exponential(mixtures, losses)
    assert one(points) == pytest.approx(other(points), abs=1e-9)


@pytest.mark.parametrize("order", itertools.permutations(range(4)))
def test_groups_are_the_same_in_any_order(order: tuple[int, ...]) -> None:
    first = np.array([0.5, 0.5009, 0.5018, 0.51])[list(order)]
    groups = group_runs(np.stack([first, 1 - first], axis=1))
    assert groups[0] == 0
    assert len(set(groups.tolist())) == 2
    alone = groups[order.index(3)]
    assert (groups == alone).sum() == 1


def test_runs_agree_in_samples_or_in_tokens() -> None:
    samples, tokens = np.array([[0.1], [0.2], [0.2], [0.4]]), np.array([[0.3], [0.3], [0.5], [0.6]])
    assert group_runs(samples, tokens).tolist() == [0, 0, 0, 1]
