"""The samples with the highest loss."""

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.selection.base import Offers, known
from replay.selection.shared.slot_trees import LargestValues


class Surprise(LargestValues):
    """Keeps the samples with the highest loss: surprise-driven selection.

    SuRe (arXiv:2511.22367) keeps the sequences with the highest negative log-likelihood per token under the model that
    is being trained, `s(x) = -1/|x| Σ_t log p(x_t | x_<t)`, at the time when they are trained on. A loss that is not
    finite counts as lower than any other: such a sample is kept while there is room and is the first to go.

    All samples compete, whatever their task; a buffer for each task gives each its share. Losses are not refreshed, so
    that samples of a young model stay longest.
    """

    needs = frozenset({"loss"})
    column = "losses"

    def choose(self, offers: Offers) -> Int64Array:
        """Keeps the highest losses, of equal ones the first; see `Selection.choose`."""
        losses = known(offers.losses, "losses")
        return self.place(np.where(np.isfinite(losses), losses, -np.inf))
