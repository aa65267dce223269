"""Policies by rewards: MTGRPO and Learnability."""

from typing import Any

import numpy as np
import pytest

from mixer.measurements import Rewards, RewardStatistics
from mixer.policies import MTGRPO, Learnability, Observation
from tests.mixer.policies.observed import NAN, led, mixture, observe

OWN = [0.5, 0.5]


def round_of(reward: Any = (NAN, NAN), spread: Any = (NAN, NAN), silent: Any = (0.0, 0.0), **seen: Any) -> Observation:
    """A round with these figures of each stream."""
    arrays = [np.array(values, dtype=np.float64) for values in (reward, spread, silent)]
    none = np.full(len(arrays[0]), NAN)
    found = RewardStatistics(np.full(len(none), 4), *arrays, none, none)
    observation = observe(counts=[4] * len(none), **seen)
    return Observation(**{**vars(observation), "measured": {Rewards: found}})


class TestMTGRPO:
    def test_by_hand(self) -> None:
        """η = 1, λ = 0.5, no smoothing: log z falls by λ J, in the second round also by I, ±0.1 (0.3 is cut)."""
        policy = MTGRPO(1.0, 0.5, smoothing=0.0, decay=0.0)
        course = [round_of((0.2, 0.6)), round_of((0.5, 0.5))]
        _, first, second = led(policy, course, OWN)
        z = np.exp([-0.1, -0.3])
        np.testing.assert_allclose(first.weights, z / z.sum(), rtol=1e-12)
        z = np.exp([-0.1 - 0.1 - 0.25, -0.3 + 0.1 - 0.25])
        np.testing.assert_allclose(second.weights, z / z.sum(), rtol=1e-12)

    def test_groups_with_signal_keep_the_ratio_of_the_weights(self) -> None:
        """Equal rewards: z stays even, and q (1 − f) is even; a task without any signal is inflated fivefold."""
        policy = MTGRPO(decay=0.0)
        _, found = led(policy, [round_of((0.5, 0.5), silent=(0.75, 0.5))], OWN)
        np.testing.assert_allclose(found.weights * (0.25, 0.5), (1 / 6, 1 / 6), rtol=1e-12)
        _, found = led(MTGRPO(decay=0.0), [round_of((0.0, 0.0), silent=(1.0, 0.0))], OWN)
        np.testing.assert_allclose(found.weights, (5 / 6, 1 / 6), rtol=1e-12)
        _, found = led(MTGRPO(decay=0.0, most_inflation=1.0), [round_of((0.5, 0.5), silent=(0.9, 0.0))], OWN)
        np.testing.assert_allclose(found.weights, OWN, rtol=1e-12)

    def test_a_task_without_prompts_counts_with_its_last_reward(self) -> None:
        policy = MTGRPO(1.0, 1.0, smoothing=0.0, decay=0.0)
        *_, second = led(policy, [round_of((0.2, 0.6)), round_of((0.2, NAN), silent=(0.0, NAN))], OWN)
        z = np.exp([-0.4, -1.2])
        np.testing.assert_allclose(second.weights, z / z.sum(), rtol=1e-12)


class TestLearnability:
    def test_by_hand(self) -> None:
        """Half of a fifth of each, and four fifths by the spread 0.1 : 0.3 times the own 1 : 1."""
        *_, found = led(Learnability(), [round_of((0.5, 0.5), (0.1, 0.3))], OWN)
        np.testing.assert_allclose(found.weights, (0.1 + 0.2, 0.1 + 0.6), rtol=1e-12)

    def test_nothing_to_learn_anywhere_and_nothing_known_leave_the_own_weights(self) -> None:
        course = [round_of(), round_of((1.0, 0.0), (0.0, 0.0))]
        for found in led(Learnability(), course, [0.7, 0.3]):
            np.testing.assert_allclose(found.weights, (0.7, 0.3), rtol=1e-12)

    def test_a_stream_without_a_group_counts_as_the_mean_of_the_others(self) -> None:
        policy = Learnability(least=0.0, decay=0.0)
        policy.start(mixture([1, 1, 1]))
        found = policy.update(round_of((0.5, 0.5, NAN), (0.1, 0.3, NAN), (0.0, 0.0, NAN)))
        np.testing.assert_allclose(found.weights, np.array([1, 3, 2]) / 6, rtol=1e-12)


@pytest.mark.parametrize("policy", [MTGRPO, Learnability])
def test_a_stream_of_weight_0_stays_out(policy: Any) -> None:
    *_, found = led(policy(), [round_of((0.0, 1.0), (0.4, 0.1))] * 5, [0.0, 1.0])
    assert found.weights.tolist() == [0.0, 1.0]
