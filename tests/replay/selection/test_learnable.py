from replay.selection import Learnable
from tests.replay.selection.offering import Slots, offers_of


def test_what_was_solved_meanwhile_goes_first_and_nothing_worse_comes_in() -> None:
    """Spreads 1.3, 2.8, 2.0 fill it; replays find 2.8 to be 0; 0.9 replaces that, and 0.6 nothing."""
    slots = Slots(Learnable(), 3)
    assert slots.offer(offers_of([0, 1, 2])) == [0, 1, 2]
    slots.selection.update_losses([1], [0.0])
    assert slots.offer(offers_of([11])) == [1]
    assert slots.offer(offers_of([13])) == [-1]


def test_of_equal_ones_the_first_measured_goes() -> None:
    slots = Slots(Learnable(), 3)
    slots.offer(offers_of([0, 1, 2]))
    slots.selection.update_losses([2, 0, 1], [1.0, 1.0, 1.0])
    assert slots.offer(offers_of([3, 5])) == [2, 0]
