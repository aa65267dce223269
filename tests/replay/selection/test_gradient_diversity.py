import numpy as np
import pytest

from replay.selection import GradientDiversity, Offers
from tests.replay.selection.offering import Slots


def offer(slots: Slots, scores: list[float], first: int = 0) -> list[int]:
    return slots.offer(Offers(len(scores), first, scores=np.array(scores, dtype=np.float64)))


def test_a_sample_like_others_or_unknown_is_not_kept_once_the_buffer_is_full() -> None:
    slots = Slots(GradientDiversity(), 3)
    assert offer(slots, [0.9, np.nan, -1.0, 0.0, 0.5, 1.0, np.nan]) == [0, 1, 2, -1, -1, -1, -1]


def test_entries_make_room_by_their_likeness_against_that_of_the_new_one() -> None:
    scores, new = np.array([0.9, 0.1, -0.5, -1.0, np.nan]), -0.4
    num_keys, counts = 20_000, np.zeros(6)
    for key in range(num_keys):
        slots = Slots(GradientDiversity(), 5, key)
        offer(slots, scores.tolist())
        counts[offer(slots, [new], first=5)[0]] += 1  # the last is: not kept
    likeness, own = (np.where(np.isnan(scores), 0.1, scores) + 1) / 2, (new + 1) / 2
    probabilities = likeness / likeness.sum() * likeness / (likeness + own)
    expected = num_keys * np.append(probabilities, 1 - probabilities.sum())
    assert counts[3] == 0  # as unlike the others as can be
    statistic = np.delete((counts - expected) ** 2 / np.maximum(expected, 1), 3).sum()
    assert statistic < 4 + 5 * np.sqrt(8)


def test_the_opposite_of_all_takes_any_other_slot_for_sure() -> None:
    slots = Slots(GradientDiversity(), 4)
    offer(slots, [-1.0, -1.0, 0.3, -1.0])
    assert offer(slots, [-1.0, -1.0], first=4) == [2, -1]


def test_scores_beyond_the_range_are_cut() -> None:
    slots = Slots(GradientDiversity(), 1)
    assert offer(slots, [1.0 + 1e-6, -1.0 - 1e-6]) == [0, 0]


@pytest.mark.parametrize("count", [0, 2.5])
def test_the_number_to_compare_with_is_a_whole_number(count: int) -> None:
    with pytest.raises(ValueError, match="num_compared must be a whole number, 1 or more"):
        GradientDiversity(count)
