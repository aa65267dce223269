"""The samples with the highest loss."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.selection.base import Offers, Selection, known
from replay.selection.largest import Largest


class Surprise(Selection):
    """Keeps the samples with the highest loss: surprise-driven selection.

    SuRe (arXiv:2511.22367) keeps the sequences with the highest negative log-likelihood per token under the model that
    is being trained, `s(x) = -1/|x| Σ_t log p(x_t | x_<t)`, at the time when they are trained on. A loss that is not
    finite counts as lower than any other: such a sample is kept while there is room and is the first to go.

    All samples compete, whatever their task; a buffer for each task gives each its share. Losses are not refreshed, so
    that samples of a young model stay longest.
    """

    needs = frozenset({"loss"})

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self._largest = Largest(capacity)

    @property
    def size(self) -> int:
        """Number of slots that are taken."""
        return self._largest.size

    def choose(self, offers: Offers) -> Int64Array:
        """Keeps the highest losses, of equal ones the first; see `Selection.choose`."""
        losses = known(offers.losses, "losses")
        return self._largest.offer(np.where(np.isfinite(losses), losses, -np.inf))

    def remove(self, slot: int) -> None:
        """Forgets an entry; see `Selection.remove`."""
        self._largest.remove(slot)

    def state_dict(self) -> dict[str, Any]:
        """Gives the losses of the entries; see `Selection.state_dict`."""
        return {"capacity": self._capacity, "losses": self._largest.values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up the losses; see `Selection.load_state_dict`."""
        super().load_state_dict(state)
        self._largest.load(np.asarray(state["losses"], dtype=np.float64))
