"""A reservoir that evicts low-loss entries first."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mixer.utils.arrays import FloatArray, Int64Array
from replay.selection.base import Offers, Selection, known
from replay.shared.random_numbers import RandomNumbers

_LARGEST_LOSS = 50.0  # an entry with more is as good as never drawn, and the sum of the weights is still exact enough


class LossAware(Selection):
    """Accepts samples as a reservoir does and pushes out entries with a low loss: loss-aware reservoir sampling (LARS).

    Buzzega et al. 2020, "Rethinking Experience Replay: a Bag of Tricks for Continual Learning", arXiv:2010.05595:
    sample `n` is accepted with probability `C/(n + 1)`, and entry `i` makes room for it with a probability in
    proportion to its score. The paper's score is the negative loss, normalised over the whole buffer, which takes a
    pass over all entries per sample. Here it is `exp(-loss_i)`, the model's likelihood of the entry, with losses cut to
    [0, 50]: it needs nothing of the other entries, so that a draw is O(log C). A loss that is NaN counts as 0: such
    an entry is as likely to leave as any can be.

    Losses are of the time when a sample came until `update_losses` refreshes them, as is best done whenever an
    entry is replayed.
    """

    needs = frozenset({"loss"})
    follows_losses = counts_rows = True

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._acceptance, self._losers = RandomNumbers(key), RandomNumbers(key, purpose=1)
        self._weights = SumTree(capacity)

    def choose(self, offers: Offers) -> Int64Array:
        """Draws which samples are accepted and which entries make room; see `Selection.choose`."""
        numbers = offers.numbers
        accepted = np.flatnonzero(self._acceptance.integers(numbers, numbers + 1) < self._capacity)
        weights = _weights(known(offers.losses, "losses")[accepted]).tolist()
        uniforms = self._losers.uniforms(numbers[accepted]).tolist()
        slots = np.full(offers.count, -1, dtype=np.int64)
        for index, weight, uniform in zip(accepted.tolist(), weights, uniforms, strict=True):
            if self._size < self._capacity:
                slot, self._size = self._size, self._size + 1
            else:
                slot = self._weights.find(uniform)
            self._weights.set(slot, weight)
            slots[index] = slot
        return slots

    def update_losses(self, slots: ArrayLike, losses: ArrayLike) -> None:
        """Updates the losses of entries; see `Selection.update_losses`."""
        weights = _weights(np.asarray(losses, dtype=np.float64))
        for slot, weight in zip(np.asarray(slots).tolist(), weights.tolist(), strict=True):
            self._weights.set(slot, weight)

    def remove(self, slot: int) -> None:
        """Removes an entry; the next accepted sample takes the room; see `Selection.remove`."""
        self._size -= 1
        self._weights.set(slot, self._weights.leaves[self._size])
        self._weights.set(self._size, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the weights of the entries; see `Selection.state_dict`."""
        return {**super().state_dict(), "weights": self._weights.leaves[: self._size].copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the weights of the entries; see `Selection.load_state_dict`."""
        super().load_state_dict(state)
        self._weights, self._size = SumTree(self._capacity, state["weights"]), len(state["weights"])


def _weights(losses: FloatArray) -> FloatArray:
    weights: FloatArray = np.exp(-np.clip(np.nan_to_num(losses, nan=0.0, posinf=_LARGEST_LOSS), 0.0, _LARGEST_LOSS))
    return weights


class SumTree:
    """Weights of slots, from which one is drawn in O(log slots).

    Node `i` holds the sum of nodes `2i` and `2i + 1`, and slot `s` is node `num_slots + s`: any number of slots makes a
    tree, at 16 bytes each. Inner nodes are always computed from the two below them, so that they are the same whatever
    came before.

    Args:
        num_slots: Number of slots.
        weights: Weights of the first slots; those of others are 0.
    """

    def __init__(self, num_slots: int, weights: ArrayLike = ()):
        self._num_slots, nodes = num_slots, np.zeros(2 * num_slots)
        self.leaves = nodes[num_slots:]
        self.leaves[: len(np.asarray(weights))] = weights
        # A view reads and writes single numbers faster than numpy does.
        self._nodes: memoryview[float] = nodes.data.cast("B").cast("d")
        stop = num_slots
        while stop > 1:  # the nodes whose two below are both done
            start = (stop + 1) // 2
            nodes[start:stop] = nodes[2 * start : 2 * stop : 2] + nodes[2 * start + 1 : 2 * stop : 2]
            stop = start

    def find(self, uniform: float) -> int:
        """Returns the slot at which a share of the total weight, in [0, 1), is reached."""
        nodes, node, num_slots = self._nodes, 1, self._num_slots
        target = uniform * nodes[1]
        while node < num_slots:
            node *= 2
            if target >= nodes[node]:
                target -= nodes[node]
                node += 1
        return node - num_slots

    def set(self, slot: int, weight: float) -> None:
        """Changes the weight of a slot."""
        nodes, node = self._nodes, self._num_slots + slot
        nodes[node] = weight
        while node > 1:
            node >>= 1
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
