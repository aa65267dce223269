import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.policies import Spaced
from tests.replay.policies.updates import one_memory, shown


def bursts(policy: Spaced, norms: Sequence[float], second_from: int = 99) -> list[int]:
    """The steps after which it replays; the second task comes after one of them."""
    found = []
    for step, norm in enumerate(norms, start=1):
        decision = policy.update(shown(3, step, seen=[step, max(0, step - second_from), step], update_norm=norm))
        found += [step - 1] if decision.weights[2] > 0 else []
    return found


def started(*arguments: Any, **options: Any) -> Spaced:
    policy = Spaced(*arguments, **options)
    assert policy.start(one_memory(2)).weights[2] == 0.0
    return policy


def test_bursts_replay_the_ratio() -> None:
    policy = started(0.4, 1, 2.0, 1)
    assert policy.update(shown(3, update_norm=0.5)).weights[2] == pytest.approx(0.4)
    policy = started(0.5, 1, 2.0, 1, additional=True)
    found = [policy.update(shown(3, update_norm=0.5)).additional.tolist() for _ in range(2)]
    assert found == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("arguments", "norms", "expected"),
    [
        ((0.3, 3, 2.0, 2), [1.0] * 30, [2, 3, 10, 11, 24, 25]),  # 3 steps, a burst of 2, 6, a burst, 12, a burst
        # A first interval of 4 and a step of replay; the next burst is 8 away: 32 steps at a quarter of the speed.
        ((0.3, 4, 2.0, 1), [1.0] * 4 + [0.0] * 2 + [0.25] * 32, [3, 5 + 32]),
        ((0.3, 4, 2.0, 1), [1.0] * 4 + [4.0] * 8, [3, 6, 11]),
        ((0.3, 2, 1.0, 1), [1.0, np.nan, 0.0, np.inf, 1.0, 1.0], [4]),  # steps that moved nothing take no time
        ((0.3, 1, 1.0, 1), [np.nan, 0.0] * 5, []),
        ((0.3, 2, 1.0, 1), [1.0] * 9, [1, 4, 7]),  # a growth of 1 keeps the interval
    ],
)
def test_bursts_go_by_how_far_the_model_moves(arguments: Any, norms: list[float], expected: list[int]) -> None:
    assert bursts(started(*arguments), norms) == expected


def test_a_new_task_begins_with_the_first_interval_again() -> None:
    # After 3; then due 12 later (the 16th), but the new task's own first interval ends with step 15.
    assert bursts(started(0.3, 3, 4.0, 1), [1.0] * 24, second_from=12) == [2, 14]


@given(
    norms=st.lists(st.one_of(st.floats(0, 3), st.sampled_from([np.nan, np.inf, 1e308, 5e-324])), max_size=25),
    cut=st.integers(0, 25),
)
def test_saved_anywhere_it_goes_on_alike(norms: list[float], cut: int) -> None:
    policy, resumed = started(0.3, 2, 1.5, 2), started(0.3, 2, 1.5, 2)
    bursts(policy, norms[:cut])
    saved = json.dumps(policy.state_dict(), allow_nan=False)
    resumed.load_state_dict(json.loads(saved))
    assert json.dumps(resumed.state_dict()) == saved
    later = [*norms[cut:], *[1.0] * 5]
    assert bursts(resumed, later) == bursts(policy, later)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 0.0}, "ratio must be above 0"),
        ({"first_interval_steps": 0}, "first_interval_steps must be a whole number, 1 or more"),
        ({"burst_steps": 2.5}, "burst_steps must be a whole number"),
        ({"growth": 0.9}, "growth must be 1 or more"),
    ],
)
def test_values_outside_their_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Spaced(**options)
