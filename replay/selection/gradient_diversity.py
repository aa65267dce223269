"""Samples with diverse gradients."""

import numpy as np

from mixer.utils.arrays import Int64Array
from mixer.utils.ranges import check_count
from replay.selection.base import Offers, known
from replay.selection.shared.slot_trees import SlotValues, SumTree
from replay.shared.random_numbers import RandomNumbers

_UNKNOWN = 0.1  # what the authors' code gives to the first samples, for which there is nothing to compare with


class GradientDiversity(SlotValues):
    """Keeps samples whose gradient is unlike those of others: gradient-based sample selection (GSS-greedy).

    Aljundi et al. 2019, "Gradient Based Sample Selection for Online Continual Learning", arXiv:1903.08671, algorithm 2.
    A sample's score is the largest cosine of its gradient with those of `num_compared` entries drawn at random; with
    `c = (score + 1)/2`, from 0 for the opposite of all to 1 for the same as one. While there is room every sample is
    kept. Then one with a score below 0 draws an entry `i` with `P(i) = c_i / Σ_j c_j` and takes its slot with
    probability `c_i / (c_i + c)`. Scores are not computed again. A score that is NaN counts as 0.1.

    O(log C) a sample, but the gradient of each has to be computed and compared.

    Args:
        num_compared: Number of random entries with whose gradients that of a sample is compared.

    Raises:
        ValueError: If it is below 1.
    """

    needs = frozenset({"gradient"})
    column = "likeness"
    _tree: SumTree

    def __init__(self, num_compared: int = 10):
        check_count("num_compared", num_compared, 1, "the paper compares with 10")
        self.num_compared = num_compared

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._losers, self._decisions = RandomNumbers(key), RandomNumbers(key, purpose=1)
        self._tree = SumTree(capacity)

    def choose(self, offers: Offers) -> Int64Array:
        """Sets samples unlike the others in the place of entries like others; see `Selection.choose`."""
        scores = known(offers.scores, "scores")
        likeness = (np.clip(np.where(np.isnan(scores), _UNKNOWN, scores), -1.0, 1.0) + 1.0) / 2.0
        draws = self._losers.uniforms(offers.numbers), self._decisions.uniforms(offers.numbers)
        each = zip(likeness.tolist(), draws[0].tolist(), draws[1].tolist(), strict=True)
        return np.array([self._choose_one(*one) for one in each], dtype=np.int64)

    def _choose_one(self, own: float, loser_draw: float, decision: float) -> int:
        if self._size < self._capacity:
            slot, self._size = self._size, self._size + 1
        elif own >= 0.5:
            return -1
        else:
            slot = self._tree.find(loser_draw)
            likeness = self._tree.get(slot)
            if decision * (likeness + own) >= likeness:
                return -1
        self._tree.set(slot, own)
        return slot
