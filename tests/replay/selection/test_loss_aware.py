import numpy as np
import pytest

from replay.selection import LossAware, Offers, Reservoir
from tests.replay.selection.offering import Slots


def offer(slots: Slots, losses: list[float], first: int = 0) -> list[int]:
    return slots.offer(Offers(len(losses), first, losses=np.array(losses, dtype=np.float64)))


def losers(losses: list[float], refreshed: dict[int, float] | None = None, num_keys: int = 4_000) -> np.ndarray:
    """How often each entry of a full buffer makes room, where the next sample is accepted."""
    counts = np.zeros(len(losses))
    for key in range(num_keys):
        slots = Slots(LossAware(), len(losses), key)
        offer(slots, losses)
        slots.selection.update_losses(list(refreshed or {}), list((refreshed or {}).values()))  # type: ignore[attr-defined]
        taken = offer(slots, [1.0], first=len(losses))[0]
        if taken >= 0:
            counts[taken] += 1
    return counts


def check(counts: np.ndarray, weights: np.ndarray) -> None:
    expected = counts.sum() * weights / weights.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < len(counts) + 5 * np.sqrt(2 * len(counts))


def test_entries_make_room_in_proportion_to_their_likelihood() -> None:
    losses = [0.0, 0.5, 1.0, 2.0, 1.0]
    check(losers(losses), np.exp(-np.array(losses)))


def test_losses_can_be_refreshed() -> None:
    check(losers([0.0, 0.0, 1.0], {0: 2.0, 2: 0.5}), np.exp(-np.array([2.0, 0.0, 0.5])))


def test_losses_beyond_the_range_are_cut_and_nan_leaves_first() -> None:
    counts = losers([np.nan, -7.0, 0.0, np.inf, 1e6], num_keys=3_000)
    assert counts[3] == counts[4] == 0
    check(counts[:3], np.ones(3))


def test_samples_are_accepted_as_a_reservoir_accepts_them() -> None:
    slots, reservoir = Slots(LossAware(), 10, key=4), Slots(Reservoir(), 10, key=4)
    taken, plain = offer(slots, [1.0] * 300), reservoir.offer(Offers(300, 0))
    assert [slot >= 0 for slot in taken] == [slot >= 0 for slot in plain]


def test_hard_samples_stay_longer() -> None:
    losses = np.random.default_rng(0).uniform(0, 4, size=2_000)
    slots = Slots(LossAware(), 100)
    offer(slots, losses.tolist())
    assert losses[slots.numbers].mean() > losses.mean() + 0.5


def test_buffers_of_hopeless_entries_still_change() -> None:
    slots = Slots(LossAware(), 3)
    offer(slots, [np.inf] * 3)
    assert max(offer(slots, [np.inf] * 200, first=3)) >= 0


def test_slots_and_losses_must_go_together() -> None:
    selection = LossAware()
    selection.start(3, 0)
    with pytest.raises(ValueError, match="zip"):
        selection.update_losses([0, 1], [1.0])
