"""Offers of any kind of sample, and a buffer that holds what a selection says: shared by the tests."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from replay.selection import Herding, Offers, Ring, Selection, selection_classes

BY_TASK: dict[str, Callable[[], Selection]] = {"Herding": Herding}
MAKERS: dict[str, Callable[[], Selection]] = {
    **{name: kind for name, kind in selection_classes().items() if name not in BY_TASK},
    "Ring by label": lambda: Ring(by=("label",)),
    "Ring by task": lambda: Ring(by="task"),
}


@cache
def _row(number: int) -> np.ndarray:
    return np.random.default_rng([0, number]).uniform(size=8)


def offers_of(numbers: Sequence[int] | range) -> Offers:
    """Samples whose properties depend on their number alone, so that they can be offered in any split."""
    numbers = list(numbers)
    rows = np.array([_row(number) for number in numbers]).reshape(-1, 8)
    return Offers(
        count=len(numbers),
        first=numbers[0] if numbers else 0,
        tasks=np.array([number * 3 // 200 for number in numbers], dtype=np.int64),
        labels=np.floor(rows[:, 0] ** 2 * 4).astype(np.int64),
        losses=np.round(rows[:, 1] * 5, 1),  # rounded, so that some are equal
        features=rows[:, 3:],
    )


class Slots:
    """What stands in the slots of a buffer, kept as plainly as can be."""

    def __init__(self, selection: Selection, capacity: int, key: int = 5):
        self.selection, self.capacity = selection, capacity
        self.numbers: list[int] = []
        selection.start(capacity, key)

    def offer(self, offers: Offers) -> list[int]:
        slots = self.selection.choose(offers)
        assert slots.dtype == np.int64
        assert slots.shape == (offers.count,)
        for number, slot in zip(offers.numbers.tolist(), slots.tolist(), strict=True):
            if slot == len(self.numbers):
                self.numbers.append(number)
            elif slot != -1:
                assert 0 <= slot < len(self.numbers), "new slots are taken in order"
                self.numbers[slot] = number
        assert len(self.numbers) == self.selection.size <= self.capacity
        return slots.tolist()

    def remove(self, slot: int) -> None:
        self.selection.remove(slot)
        last = self.numbers.pop()
        if slot < len(self.numbers):
            self.numbers[slot] = last
        assert len(self.numbers) == self.selection.size


def chi_square_is_fine(counts: np.ndarray, expected: np.ndarray | float, part: np.ndarray | float = 0.0) -> bool:
    """Whether counts are within five standard deviations of chance; `part` is that of each in a draw of several."""
    statistic = ((counts - expected) ** 2 / (expected * (1 - part))).sum()
    return bool(statistic < len(counts) + 5 * np.sqrt(2 * len(counts)))
