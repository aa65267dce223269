import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies.shared.loss_history import LossHistory


def history_of(losses: list[float], max_points: int = 8) -> LossHistory:
    history = LossHistory(max_points)
    history.start(1)
    for step, loss in enumerate(losses, start=1):
        history.take(np.array([float(step)]), np.array([loss]))
    return history


def test_up_to_the_limit_points_are_the_losses() -> None:
    log_amounts, log_losses = history_of([4.0, 2.0, 1.0]).points(0)
    np.testing.assert_allclose(log_amounts, np.log([1, 2, 3]))
    np.testing.assert_allclose(log_losses, np.log([4, 2, 1]))


def test_at_the_limit_neighbours_are_joined_by_their_geometric_means() -> None:
    """8 points become 4; the 9th loss opens a block, the 10th closes it."""
    losses = [float(k) for k in range(1, 11)]
    assert len(history_of(losses[:8]).points(0)[0]) == 4
    assert len(history_of(losses[:9]).points(0)[0]) == 4
    log_amounts, log_losses = history_of(losses).points(0)
    pairs = np.sqrt([1 * 2, 3 * 4, 5 * 6, 7 * 8, 9 * 10])
    np.testing.assert_allclose(np.exp(log_amounts), pairs)
    np.testing.assert_allclose(np.exp(log_losses), pairs)


def test_a_power_law_stays_one_however_often_it_is_thinned() -> None:
    amounts = np.arange(1, 5000)
    log_amounts, log_losses = history_of((3.0 * amounts**-0.4).tolist()).points(0)
    np.testing.assert_allclose(log_losses, np.log(3.0) - 0.4 * log_amounts, rtol=1e-9)


@given(num_losses=st.integers(0, 300), max_points=st.sampled_from([8, 10, 64]))
def test_points_are_bounded_ascend_and_cover_all_but_an_open_block(num_losses: int, max_points: int) -> None:
    history = history_of([1.0] * num_losses, max_points)
    log_amounts, _ = history.points(0)
    block_size = history.state_dict()["block_sizes"][0]
    assert len(log_amounts) < max_points
    assert (np.diff(log_amounts) > 0).all()
    assert len(log_amounts) == num_losses // block_size


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 0.0, -1.0])
def test_losses_that_have_no_logarithm_are_skipped(loss: float) -> None:
    assert history_of([2.0, loss, 1.0]).state_dict()["points"] == [[[0.0, np.log(3.0)], [np.log(2.0), 0.0]]]


def test_streams_have_blocks_of_their_own() -> None:
    history = LossHistory(8)
    history.start(2)
    for step in range(1, 41):
        history.take(np.array([step, step - 38.0]), np.array([1.0, 2.0]))
    assert len(history.points(0)[0]) == 5  # 40 losses in blocks of 8
    np.testing.assert_allclose(np.exp(history.points(1)[0]), [1.0, 2.0])


@given(losses=st.lists(st.floats(1e-300, 1e300), max_size=50), cut=st.integers(0, 50))
def test_saved_it_goes_on_alike(losses: list[float], cut: int) -> None:
    history, resumed = history_of(losses[:cut]), LossHistory(8)
    resumed.load_state_dict(json.loads(json.dumps(history.state_dict(), allow_nan=False)))
    for step, loss in enumerate(losses[cut:], start=len(losses[:cut]) + 1):
        for made in (history, resumed):
            made.take(np.array([float(step)]), np.array([loss]))
    assert resumed.state_dict() == history.state_dict()


@given(losses=st.lists(st.floats(0.1, 9.0), max_size=200), cut=st.integers(0, 200), max_points=st.sampled_from([8, 14]))
def test_resumed_with_fewer_points_it_is_as_if_it_had_never_had_more(losses, cut: int, max_points: int) -> None:
    resumed, expected = LossHistory(max_points), history_of(losses, max_points)
    resumed.load_state_dict(json.loads(json.dumps(history_of(losses[:cut], 64).state_dict())))
    for step, loss in enumerate(losses[cut:], start=len(losses[:cut]) + 1):
        resumed.take(np.array([float(step)]), np.array([loss]))
    found, wanted = resumed.state_dict(), expected.state_dict()
    np.testing.assert_allclose(found["points"], wanted["points"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["open_sums"], wanted["open_sums"], rtol=1e-9, atol=1e-9)
    assert (found["block_sizes"], found["open_counts"]) == (wanted["block_sizes"], wanted["open_counts"])


def test_resumed_with_more_points_it_goes_on_from_those_it_has() -> None:
    resumed = LossHistory(64)
    resumed.load_state_dict(history_of([1.0] * 20).state_dict())
    resumed.take(np.array([21.0]), np.array([1.0]))
    assert len(resumed.points(0)[0]) == 5


def test_the_state_of_a_long_run_is_small() -> None:
    history = LossHistory(64)
    history.start(10)
    for step in range(1, 20_001):
        history.take(np.full(10, 8.0 * step), np.full(10, 2.0 + 1.0 / step))
    assert len(json.dumps(history.state_dict())) < 10 * 64 * 2 * 22


@pytest.mark.parametrize("max_points", [6, 9, 8.0])
def test_a_limit_that_cannot_be_is_refused(max_points: float) -> None:
    with pytest.raises(ValueError, match="max_points must be an even number, 8 or more"):
        LossHistory(max_points)
