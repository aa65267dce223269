import math

import numpy as np
import pytest

from mixer import AdaptiveBatchSampler
from mixer.measurements import Rewards, RewardStatistics
from mixer.measurements.rewards import sums_of_groups
from mixer.policies import MTGRPO
from mixer.utils.errors import InvalidTypeError
from tests.refusals import refused


def test_figures_by_hand() -> None:
    """Groups (1 0 0 1), (1 1 1 1) of b; (0 1 NaN NaN) of a; one of c that nobody scored."""
    nan = math.nan
    groups = np.array([[1, 0, 0, 1], [0, 1, nan, nan], [1, 1, 1, 1], [nan, nan, nan, nan]])
    ids = np.array([1, 0, 1, 2])
    found = RewardStatistics.of(sums_of_groups(ids, groups, 4, np.array([2.0, 3.0, 4.0, 5.0])))
    assert found.groups.tolist() == [1, 2, 1, 0]
    np.testing.assert_allclose(found.reward, [0.5, 0.75, nan, nan])
    np.testing.assert_allclose(found.spread, [0.5, 0.25, nan, nan])
    np.testing.assert_allclose(found.silent, [0.0, 0.5, nan, nan])
    np.testing.assert_allclose(found.mean_length, [3.0, 3.0, 5.0, nan])
    assert np.isnan(found.kl).all()
    part = Rewards.part(found, [2, 1])
    assert part.groups.tolist() == [1, 2]
    np.testing.assert_allclose(part.reward, [nan, 0.75])


def test_sums_add_up_over_ranks_and_rounds() -> None:
    random = np.random.default_rng(0)
    ids, rewards = random.integers(0, 3, 40), random.integers(0, 2, (40, 4)).astype(float)
    whole = RewardStatistics.of(sums_of_groups(ids, rewards, 3))
    parts = [sums_of_groups(ids[part::4], rewards[part::4], 3) for part in range(4)]
    for one, other in zip(vars(whole).values(), vars(RewardStatistics.of(sum(parts))).values(), strict=True):
        np.testing.assert_allclose(one, other)


def test_a_loop_of_ones_own_reports_groups_by_name() -> None:
    """Two of three streams have prompts in the batch; groups may differ in size."""
    sampler = AdaptiveBatchSampler({"a": range(9), "b": range(9), "c": range(9)}, 4, mixing=MTGRPO(decay=0.0))
    batches = iter(sampler)
    next(batches)
    sampler.observe(rewards={"b": [[1, 1], [1, 0, 1]], "a": [[0, 0, 0]]})
    terms = sampler.mixing.policy.explain()
    np.testing.assert_allclose(terms["reward"], [0.0, 5 / 6, math.nan])
    np.testing.assert_allclose(terms["silent"], [1.0, 0.5, math.nan])
    weights = sampler.mixing.decision.weights
    assert weights[0] > weights[1]
    next(batches)
    with refused("rewards", InvalidTypeError):
        sampler.observe(rewards={"d": [[1, 0]]})
    with refused("rewards", InvalidTypeError):
        sampler.observe(rewards=[[1, 0]])


def test_a_policy_by_rewards_has_nothing_to_go_by_without_completions() -> None:
    assert "generated completions" in pytest.importorskip("mixer.measurements").required(MTGRPO().needs)
