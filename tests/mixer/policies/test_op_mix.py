from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixer.measurements import Branches, BranchStatistics
from mixer.policies import Hold, OPMix
from mixer.policies.objective import Objective
from mixer.policies.shared.mixing_law import MixingLaw
from tests.mixer.policies.observed import mixture, observe

RANDOM = np.random.default_rng(1)
POINTS = np.concatenate([np.eye(3), RANDOM.dirichlet(np.ones(3), 20)])
# Stream 0 lowers the first target, stream 1 the second, stream 2 none of them.
LAW = MixingLaw(np.array([1.0, 0.5]), np.zeros(2), np.array([[-2.0, 0.0], [0.0, -1.0], [0.0, 0.0]]))


def decided(policy: OPMix, losses: Any, have_branch: Any = (True,) * 3, importance: Any = (1.0, 1.0)) -> np.ndarray:
    objective = Objective(dict(zip("ab", importance, strict=True)))
    policy.start(replace(mixture((1.0,) * 3), objective=objective))
    points = POINTS * np.array(have_branch)
    points[points.sum(axis=1) == 0.0, 0] = 1.0
    branches = BranchStatistics(points / points.sum(axis=1, keepdims=True), losses, np.array(have_branch))
    return policy.update(observe(counts=[8] * 3, branches=branches)).weights


def by_search(importance: np.ndarray, strength: float) -> np.ndarray:
    """The best mixture of a fine grid."""
    steps = np.linspace(0.0, 1.0, 401)
    grid = np.array([(a, b, 1.0 - a - b) for a in steps for b in steps if a + b <= 1.0])
    divergence = np.where(grid > 0, grid * np.log(np.maximum(grid, 1e-300) * 3), 0.0).sum(axis=1)
    return grid[(LAW(grid) @ importance + strength * divergence).argmin()]


@pytest.mark.parametrize("strength", [0.02, 0.05, 0.5])
def test_the_law_is_minimised_with_a_pull_to_the_prior(strength: float) -> None:
    importance = np.array([0.5, 0.5])
    best = LAW.best(importance, np.full(3, 1 / 3), strength)
    np.testing.assert_allclose(best, by_search(importance, strength), atol=0.004)
    # The policy finds it from losses of the branches' mixtures, which the fit does not need to be told the law of.
    found = decided(OPMix(strength=strength, scale_free=False), LAW(POINTS))
    np.testing.assert_allclose(found, best, atol=0.02)


def test_scale_free_losses_are_those_in_units_of_their_range() -> None:
    whole = decided(OPMix(strength=0.1), LAW(POINTS))
    np.testing.assert_allclose(decided(OPMix(strength=0.1), 1e-3 * LAW(POINTS)), whole, atol=1e-6)
    weaker = decided(OPMix(strength=0.1, scale_free=False), 1e-3 * LAW(POINTS))
    np.testing.assert_allclose(weaker, 1 / 3, atol=0.01)


def test_importance_chooses_the_stream() -> None:
    for importance in ((1.0, 0.0), (0.0, 1.0)):
        found = decided(OPMix(), LAW(POINTS), importance=importance)
        assert found.argmax() == int(importance[1])
        assert found.max() > 0.9


def test_a_stream_without_a_branch_keeps_its_share() -> None:
    found = decided(OPMix(), LAW(POINTS), have_branch=(True, False, True), importance=(1.0, 0.0))
    assert found[1] == pytest.approx(1 / 3)
    assert found[0] > 0.6


def test_losses_that_are_not_finite_are_left_out() -> None:
    losses = LAW(POINTS)
    losses[5] = np.nan
    assert np.abs(decided(OPMix(), losses) - decided(OPMix(), LAW(POINTS))).max() < 0.05
    np.testing.assert_allclose(decided(OPMix(), np.full_like(losses, np.nan)), 1 / 3)
    np.testing.assert_allclose(decided(OPMix(), np.ones_like(losses)), 1 / 3)


def test_the_plan_passes_through_wrappers() -> None:
    assert Hold(OPMix(branch_steps=7), 2).needs == (Branches(num_steps=7),)
