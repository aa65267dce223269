"""A reservoir that evicts low-loss entries first."""

import numpy as np
from numpy.typing import ArrayLike

from mixer.utils.arrays import FloatArray, Int64Array
from replay.selection.base import Offers, known
from replay.selection.shared.slot_trees import SlotValues, SumTree
from replay.shared.random_numbers import RandomNumbers

_LARGEST_LOSS = 50.0  # an entry with more is as good as never drawn, and the sum of the weights is still exact enough


class LossAware(SlotValues):
    """Accepts samples as a reservoir does and pushes out entries with a low loss: loss-aware reservoir sampling (LARS).

    Buzzega et al. 2020, "Rethinking Experience Replay: a Bag of Tricks for Continual Learning", arXiv:2010.05595:
    sample `n` is accepted with probability `C/(n + 1)`, and entry `i` makes room for it with a probability in
    proportion to its score. The paper's score is the negative loss, normalised over the whole buffer, which takes a
    pass over all entries a sample. Here it is `exp(-loss_i)`, the model's likelihood of the entry, with losses cut to
    [0, 50]: it needs nothing of the other entries, so that a draw is O(log C). A loss that is NaN counts as 0: such
    an entry is as likely to leave as any can be.

    Losses are of the time when a sample came until `update_losses` refreshes them, as is best done whenever an
    entry is replayed.
    """

    needs = frozenset({"loss"})
    column = "weights"
    _tree: SumTree
    follows_losses = counts_rows = True

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._acceptance, self._losers = RandomNumbers(key), RandomNumbers(key, purpose=1)
        self._tree = SumTree(capacity)

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
                slot = self._tree.find(uniform)
            self._tree.set(slot, weight)
            slots[index] = slot
        return slots

    def update_losses(self, slots: ArrayLike, losses: ArrayLike) -> None:
        """Takes up what the losses of entries are by now; see `Selection.update_losses`."""
        weights = _weights(np.asarray(losses, dtype=np.float64))
        for slot, weight in zip(np.asarray(slots).tolist(), weights.tolist(), strict=True):
            self._tree.set(slot, weight)


def _weights(losses: FloatArray) -> FloatArray:
    weights: FloatArray = np.exp(-np.clip(np.nan_to_num(losses, nan=0.0, posinf=_LARGEST_LOSS), 0.0, _LARGEST_LOSS))
    return weights
