from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies import Fixed, LossChange, Mixture, Scheduled
from replay.policies import ReplayRatio
from tests.replay.policies.updates import MEMORIES, MIXED, OTHERS, one_memory, shown


@given(ratio=st.floats(0, 0.999999), first=st.floats(0.01, 10))
def test_replayed_samples_are_in_proportion_to_new_ones_on_top_too(ratio: float, first: float) -> None:
    shares = {"early": first, "late": 1}
    weights = ReplayRatio(ratio, shares=shares).start(MIXED).weights
    on_top = ReplayRatio(ratio, shares=shares, additional=True).start(MIXED)
    for replayed, new in ((weights, weights[OTHERS]), (on_top.additional, on_top.weights)):
        assert replayed[MEMORIES].sum() == pytest.approx(ratio / (1 - ratio) * new.sum())
        assert replayed[0] == pytest.approx(first * replayed[2])


def test_streams_that_are_not_there_do_not_count() -> None:
    policy = ReplayRatio(0.5, Fixed())
    weights = policy.start(one_memory(4)).weights
    shares = np.array([0.2, 0, 0, 0, 0.8])  # what the planner makes of the first decision for the first task
    weights = policy.update(shown(5, weights=weights, shares=shares)).weights
    np.testing.assert_allclose(weights, weights[0])
    left = ReplayRatio(0.4, Fixed())
    weights = left.start(one_memory(2)).weights
    later = left.update(shown(3, weights=weights, shares=[0, 0, 1.0])).weights
    assert later[2] == pytest.approx(0.4)  # with nothing new left, memories go on


def test_an_empty_memory_leaves_its_part_to_the_other() -> None:
    policy, there = ReplayRatio(0.4, Fixed()), [True, True, False, True, True]
    weights = policy.start(MIXED).weights
    shares = np.where(there, weights, 0.0)
    later = policy.update(shown(5, weights=weights, shares=shares / shares.sum())).weights
    drawn = np.where(there, later, 0.0)
    assert drawn[0] / drawn.sum() == pytest.approx(0.4)
    assert later[2] > 0  # or it could never be seen to be there
    on_top = ReplayRatio(0.5, additional=True)
    weights = on_top.start(MIXED).weights
    for is_there, expected in ((True, [1.0, 0.5]), (False, [0.5, 0.5])):
        step = shown(5, weights=weights, shares=weights, active=[is_there, True, False, True, True])
        assert on_top.update(step).additional[[0, 2]].tolist() == expected


def test_a_stream_that_was_asked_for_nothing_counts_as_there() -> None:
    steps = [(0.0, {"task 0": 1, "task 1": 0}), (0.5, {"task 0": 1, "task 1": 3})]
    policy = ReplayRatio(0.4, Scheduled(steps, "step"))
    weights = policy.start(one_memory(2)).weights
    later = policy.update(shown(3, weights=weights, shares=weights, active=[True] * 3, progress=0.5)).weights
    np.testing.assert_allclose(later, [0.15, 0.45, 0.4])


@pytest.mark.parametrize(
    ("make", "mixture", "expected"),
    [
        (lambda: ReplayRatio(0.2), one_memory(1), True),
        (lambda: ReplayRatio(0.2, additional=True), one_memory(3), True),
        (lambda: ReplayRatio(0.2), one_memory(3), False),  # tasks may come and go
        (lambda: ReplayRatio("tasks"), one_memory(1), False),
        (lambda: ReplayRatio([(0.0, 0.2)]), one_memory(1), False),
        (lambda: ReplayRatio(0.2, LossChange()), one_memory(1), False),
        (lambda: ReplayRatio(0.2, additional=True), MIXED, False),  # memories fill one by one
    ],
)
def test_it_is_asked_again_if_it_can_change(make: Callable[[], ReplayRatio], mixture: Mixture, expected: bool) -> None:
    policy = make()
    first = policy.start(mixture)
    assert policy.is_static is expected
    if expected:  # it would decide the same again
        again = policy.update(shown(len(mixture.names), weights=first.weights, shares=first.weights))
        np.testing.assert_array_equal(again.weights, first.weights)


def test_wrong_shares_are_refused() -> None:
    for own in ({"early": 1}, {"early": 0, "late": 0}):
        with pytest.raises(ValueError, match=r"ReplayRatio\.shares"):
            ReplayRatio(shares=own).start(MIXED)
