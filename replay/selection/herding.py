"""Samples whose mean is closest to the mean of their class."""

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count
from replay.selection.base import Offers, Selection, known


class Herding(Selection):
    """Keeps of each class samples whose mean is that of the class, chosen at a task's end: herding, as in iCaRL.

    Rebuffi et al. 2017, "iCaRL: Incremental Classifier and Representation Learning", arXiv:1611.07725, algorithms 4 and
    5 (herding: Welling 2009): with `φ` the features, scaled to length 1, and `μ` their mean over the class, exemplar
    `k` is `argmin_x ||μ − (φ(x) + Σ_{j<k} φ(p_j))/k||`; no sample is taken twice. Where room is needed the last in rank
    go: the first few exemplars are themselves a good choice. One pass over the samples an exemplar:
    O(count · num_samples · num_features).

    A class that comes again in a later task counts as another one, since the features of what is kept of it are those
    of an older model. A class takes no more slots than it has samples; what it leaves is shared by the others.

    Args:
        per_class: Slots of each class. With `None` the whole capacity is shared as evenly as can be by the classes that
            came so far; where it does not go up evenly the older ones have one more.

    Raises:
        ValueError: If it is below 1; while training, if the capacity is too small for the classes, or features are not
            finite.
    """

    needs = frozenset({"label", "features"})
    is_by_task = True
    remembered = ("_num_classes", "_classes", "_ranks")

    def __init__(self, per_class: int | None = None):
        if per_class is not None:
            check_count("per_class", per_class, 1, "None shares the capacity by the classes")
        self.per_class = per_class

    def rank(self, features: FloatArray, count: int) -> Int64Array:
        """Chooses greedily among the samples of one class.

        Args:
            features: float64 `[num_samples, num_features]`.
            count: How many to choose, 1 to `num_samples`.

        Returns:
            int64 `[count]`: different samples, those to be kept longest first.
        """
        lengths = np.linalg.norm(features, axis=1, keepdims=True)
        directions = features / np.where(lengths > 0.0, lengths, 1.0)
        mean = directions.mean(axis=0)
        # Of k²||μ − (φ + S)/k||² = ||φ||² + 2φ·(S − kμ) + ||S − kμ||² the last is the same for all samples.
        squares = (directions**2).sum(axis=1)
        chosen, total = np.zeros(count, dtype=np.int64), np.zeros_like(mean)
        for step in range(count):
            distances = squares + 2.0 * (directions @ (total - (step + 1) * mean))
            distances[chosen[:step]] = np.inf
            chosen[step] = distances.argmin()
            total += directions[chosen[step]]
        return chosen

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Selection.start`."""
        super().start(capacity, key)
        self.check_room(1, "classes", "per_class")
        self._num_classes = 0
        self._classes, self._ranks = np.zeros((2, 0), dtype=np.int64)  # of each taken slot

    @property
    def size(self) -> int:
        """Number of occupied slots."""
        return len(self._ranks)

    def choose(self, offers: Offers) -> Int64Array:
        """Ranks the samples of each class and lets older classes make room; see `Selection.choose`."""
        labels, features = known(offers.labels, "labels"), known(offers.features, "features").astype(np.float64)
        if not np.isfinite(features).all():
            raise InvalidValueError.about("Offers.features", "must be finite, got NaN or infinity.")
        _, firsts, classes, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(firsts)  # classes count as older, the earlier they came
        self.check_room(self._num_classes + len(order), "classes", "per_class")
        quotas = self._quotas(counts[order])
        kept = np.full((2, offers.count), -1, dtype=np.int64)  # class and rank of each sample
        for number, own in enumerate(order.tolist(), start=self._num_classes):
            members = np.flatnonzero(classes == own)
            chosen = members[self.rank(features[members], int(quotas[number]))] if quotas[number] else members[:0]
            kept[:, chosen] = np.full(len(chosen), number), np.arange(len(chosen))
        self._num_classes += len(order)
        return self._place(kept, quotas)

    def _quotas(self, counts: Int64Array) -> Int64Array:
        # Slots of each class, old ones and new: what they have or could have, cut where that is too much.
        most = np.concatenate([np.bincount(self._classes, minlength=self._num_classes), counts])
        return even_shares(most, self._capacity) if self.per_class is None else most.clip(max=self.per_class)

    def _place(self, kept: Int64Array, quotas: Int64Array) -> Int64Array:
        vacated = np.flatnonzero(self._ranks >= quotas[self._classes])
        samples = np.flatnonzero(kept[0] >= 0)
        num_new = len(samples) - len(vacated)
        slots = np.full(kept.shape[1], -1, dtype=np.int64)
        slots[samples] = np.concatenate([vacated, np.arange(self.size, self.size + num_new)])
        table = np.pad([self._classes, self._ranks], ((0, 0), (0, num_new)))
        table[:, slots[samples]] = kept[:, samples]
        self._classes, self._ranks = table
        return slots

    def remove(self, slot: int) -> None:
        """Forgets an entry; those behind it in rank move up; see `Selection.remove`."""
        self._ranks[(self._classes == self._classes[slot]) & (self._ranks > self._ranks[slot])] -= 1
        for table in (self._classes, self._ranks):
            table[slot] = table[-1]
        self._classes, self._ranks = self._classes[:-1], self._ranks[:-1]


def even_shares(most: Int64Array, capacity: int) -> Int64Array:
    """Shares slots as evenly as can be among classes that have use for so many at most.

    Args:
        most: int64 `[num_classes]`: most slots of each.
        capacity: Number of slots.

    Returns:
        int64 `[num_classes]`: slots of each; where it does not go up evenly the first have one more.
    """
    level, above = 0, capacity + 1
    while above - level > 1:  # the highest level to which all can be filled
        middle = (level + above) // 2
        level, above = (middle, above) if most.clip(max=middle).sum() <= capacity else (level, middle)
    shares = most.clip(max=level)
    shares[np.flatnonzero(most > level)[: capacity - int(shares.sum())]] += 1
    return shares
