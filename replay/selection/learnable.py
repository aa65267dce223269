"""The prompts with the largest spread of rewards."""

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mixer.utils.arrays import Int64Array
from replay.selection.base import Offers, Selection, known


class Learnable(Selection):
    """Keeps the samples with the largest "loss", which in `MixingGRPOTrainer` is the spread of a prompt's rewards.

    Foster et al. 2025, "Learning to Reason at the Frontier of Learnability", arXiv:2502.12272, train on the prompts
    whose success varies most. Here a buffer remembers them: once it is full, a new prompt takes the place of the one
    with the smallest standard deviation of rewards within its last group, unless its own is smaller still. Replaying
    measures a prompt anew, at no cost; those that were solved meanwhile, or have become hopeless, are the next to go.
    Of equal ones that which was measured first goes.
    """

    remembered = ("_time",)
    needs = frozenset({"loss"})
    follows_losses = True

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._spreads, self._times = np.zeros(capacity), np.zeros(capacity, dtype=np.int64)
        self._time = 0
        self._heap: list[tuple[float, int, int]] = []  # of (spread, time, slot), also of older measurements

    def choose(self, offers: Offers) -> Int64Array:
        """Gives each sample a free slot, or that of the least one; see `Selection.choose`."""
        slots = np.full(offers.count, -1, dtype=np.int64)
        for index, spread in enumerate(np.nan_to_num(known(offers.losses, "losses")).tolist()):
            slot = self._least() if self._size == self._capacity else self._size
            if slot < self._size and spread < self._spreads[slot]:
                continue
            self._size = max(self._size, slot + 1)
            self._note(slot, spread)
            slots[index] = slot
        return slots

    def _least(self) -> int:
        while (entry := self._heap[0])[1] != self._times[entry[2]]:
            heapq.heappop(self._heap)  # measured again, or gone
        return entry[2]

    def _note(self, slot: int, spread: float) -> None:
        self._time += 1
        self._spreads[slot], self._times[slot] = spread, self._time
        heapq.heappush(self._heap, (spread, self._time, slot))
        if len(self._heap) > 4 * self._capacity:  # mostly older measurements
            self._order_anew()

    def update_losses(self, slots: ArrayLike, losses: ArrayLike) -> None:
        """Takes the spreads of replayed entries; see `Selection.update_losses`."""
        spreads = np.nan_to_num(np.asarray(losses, dtype=np.float64)).tolist()
        for slot, spread in zip(np.asarray(slots).tolist(), spreads, strict=True):
            self._note(slot, spread)

    def remove(self, slot: int) -> None:
        """Removes an entry; the next sample takes the room; see `Selection.remove`."""
        self._size -= 1
        last = self._size
        self._spreads[slot], self._times[slot] = self._spreads[last], self._times[last]
        self._spreads[last], self._times[last] = 0.0, 0
        self._order_anew()

    def _order_anew(self) -> None:
        entries = zip(self._spreads.tolist(), self._times.tolist(), range(self._size), strict=False)
        self._heap = sorted(entries)

    def state_dict(self) -> dict[str, Any]:
        """Returns the last measurement of each entry; see `Selection.state_dict`."""
        own = {"spreads": self._spreads[: self._size].copy(), "times": self._times[: self._size].copy()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the last measurement of each entry; see `Selection.load_state_dict`."""
        super().load_state_dict(state)
        self._size = len(state["spreads"])
        self._spreads[: self._size], self._times[: self._size] = state["spreads"], state["times"]
        self._order_anew()
