import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.policies.shared.loss_history import LossHistory


def take(history: LossHistory, losses: list[float], first: int = 1) -> LossHistory:
    for step, loss in enumerate(losses, start=first):
        history.take(np.array([float(step)]), np.array([loss]))
    return history


def history_of(losses: list[float], max_points: int = 8) -> LossHistory:
    history = LossHistory(max_points)
    history.start(1)
    return take(history, losses)


def resumed_from(history: LossHistory, max_points: int = 8) -> LossHistory:
    resumed = LossHistory(max_points)
    resumed.load_state_dict(json.loads(json.dumps(history.state_dict(), allow_nan=False)))
    return resumed


def test_up_to_the_limit_points_are_the_losses_then_geometric_means_of_neighbours() -> None:
    """8 points become 4; the 9th loss opens a block, the 10th closes it."""
    losses = [float(k) for k in range(1, 11)]
    log_amounts, log_losses = history_of([4.0, 2.0, 1.0]).points(0)
    np.testing.assert_allclose([log_amounts, log_losses], np.log([[1, 2, 3], [4, 2, 1]]))
    assert [len(history_of(losses[:count]).points(0)[0]) for count in (8, 9)] == [4, 4]
    pairs = np.sqrt([1 * 2, 3 * 4, 5 * 6, 7 * 8, 9 * 10])
    np.testing.assert_allclose(np.exp(history_of(losses).points(0)), [pairs, pairs])


def test_a_power_law_stays_one_however_often_it_is_thinned() -> None:
    amounts = np.arange(1, 2000)
    log_amounts, log_losses = history_of((3.0 * amounts**-0.4).tolist()).points(0)
    np.testing.assert_allclose(log_losses, np.log(3.0) - 0.4 * log_amounts, rtol=1e-9)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 0.0, -1.0])
def test_losses_that_have_no_logarithm_are_skipped(loss: float) -> None:
    assert history_of([2.0, loss, 1.0]).state_dict()["points"] == [[[0.0, np.log(3.0)], [np.log(2.0), 0.0]]]


@given(losses=st.lists(st.floats(0.1, 9.0), max_size=200), cut=st.integers(0, 200), max_points=st.sampled_from([8, 14]))
def test_resumed_with_fewer_points_it_is_as_if_it_had_never_had_more(losses: Any, cut: int, max_points: int) -> None:
    resumed = resumed_from(history_of(losses[:cut], 64), max_points)
    found = take(resumed, losses[cut:], len(losses[:cut]) + 1).state_dict()
    wanted = history_of(losses, max_points).state_dict()
    np.testing.assert_allclose(found["points"], wanted["points"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["open_sums"], wanted["open_sums"], rtol=1e-9, atol=1e-9)
    assert (found["block_sizes"], found["open_counts"]) == (wanted["block_sizes"], wanted["open_counts"])
