import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.selection import GradientDiversity, LossAware, Offers, Reservoir, Surprise
from tests.replay.selection.offering import Slots, chi_square_is_fine

NAN, INF = float("nan"), float("inf")


def offer(slots: Slots, values: list[float], first: int = 0) -> list[int]:
    numbers = np.array(values, dtype=np.float64)
    return slots.offer(Offers(len(values), first, losses=numbers, scores=numbers))


class TestSurprise:
    @given(losses=st.lists(st.floats(-5, 5, width=16), max_size=60), capacity=st.integers(1, 12))
    def test_the_highest_losses_are_kept(self, losses: list[float], capacity: int) -> None:
        slots = Slots(Surprise(), capacity)
        offer(slots, losses)
        kept = sorted((losses[number] for number in slots.numbers), reverse=True)
        assert kept == sorted(losses, reverse=True)[:capacity]

    @pytest.mark.parametrize(
        ("capacity", "losses", "expected"),
        [
            (2, [1.0, 1.0, 1.0, 2.0, 1.0], [0, 1, -1, 0, -1]),  # equal ones do not push each other out
            (3, [NAN, INF, 0.0, NAN, -9.0, -8.0, INF, NAN], [0, 1, 2, -1, 1, 0, -1, -1]),
        ],
    )
    def test_equal_losses_and_infinite_ones(self, capacity: int, losses: list[float], expected: list[int]) -> None:
        assert offer(Slots(Surprise(), capacity), losses) == expected


class TestLossAware:
    @pytest.mark.parametrize(
        ("losses", "refreshed", "now"),
        [
            ([0.0, 0.5, 1.0, 2.0, 1.0], {}, [0.0, 0.5, 1.0, 2.0, 1.0]),
            ([0.0, 0.0, 1.0], {0: 2.0, 2: 0.5}, [2.0, 0.0, 0.5]),
            ([NAN, -7.0, 0.0, INF, 1e6], {}, [0.0, 0.0, 0.0, INF, INF]),  # cut to the range, and NaN leaves first
        ],
    )
    def test_the_likely_make_room(self, losses: list[float], refreshed: dict[int, float], now: list[float]) -> None:
        counts, weights = np.zeros(len(losses)), np.exp(-np.array(now))
        for key in range(1_500):
            selection = LossAware()
            slots = Slots(selection, len(losses), key)
            offer(slots, losses)
            selection.update_losses(list(refreshed), list(refreshed.values()))
            taken = offer(slots, [1.0], first=len(losses))[0]
            if taken >= 0:
                counts[taken] += 1
        there = weights > 0
        assert not counts[~there].any()
        assert chi_square_is_fine(counts[there], counts.sum() * weights[there] / weights.sum())

    def test_samples_are_accepted_as_a_reservoir_accepts_them(self) -> None:
        slots, reservoir = Slots(LossAware(), 10, key=4), Slots(Reservoir(), 10, key=4)
        taken, plain = offer(slots, [1.0] * 300), offer(reservoir, [1.0] * 300)
        assert [slot >= 0 for slot in taken] == [slot >= 0 for slot in plain]


class TestGradientDiversity:
    @pytest.mark.parametrize(
        ("capacity", "first", "second", "expected"),
        [
            (3, [0.9, NAN, -1.0], [0.0, 0.5, 1.0, NAN], [-1] * 4),  # like others, or unknown
            (4, [-1.0, -1.0, 0.3, -1.0], [-1.0, -1.0], [2, -1]),  # the opposite of all takes any other slot for sure
            (1, [1.0 + 1e-6], [-1.0 - 1e-6], [0]),  # beyond the range
        ],
    )
    def test_a_full_buffer(self, capacity: int, first: list[float], second: list[float], expected: list[int]) -> None:
        slots = Slots(GradientDiversity(), capacity)
        assert offer(slots, first) == list(range(capacity))
        assert offer(slots, second, first=capacity) == expected

    def test_entries_make_room_by_their_likeness_against_that_of_the_new_one(self) -> None:
        scores, new, num_keys, counts = np.array([0.9, 0.1, -0.5, -1.0, NAN]), -0.4, 5_000, np.zeros(6)
        for key in range(num_keys):
            slots = Slots(GradientDiversity(), 5, key)
            offer(slots, scores.tolist())
            counts[offer(slots, [new], first=5)[0]] += 1  # the last is: not kept
        likeness, own = (np.where(np.isnan(scores), 0.1, scores) + 1) / 2, (new + 1) / 2
        probabilities = likeness / likeness.sum() * likeness / (likeness + own)
        expected = num_keys * np.append(probabilities, 1 - probabilities.sum())
        assert counts[3] == 0  # as unlike the others as can be
        assert chi_square_is_fine(np.delete(counts, 3), np.delete(expected, 3))
        with pytest.raises(ValueError, match="num_compared must be a whole number, 1 or more"):
            GradientDiversity(0)
