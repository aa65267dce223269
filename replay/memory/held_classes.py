"""Class counts of the entries of a buffer, for the ledger."""

import numpy as np

from mixer.utils.arrays import Int64Array
from replay.memory.memory import Memory

# Labels of more values than that are rather numbers than classes, and would fill the ledger.
_MOST_CLASSES = 1_000


class HeldClasses:
    """Counts the entries of a buffer by class.

    Classes are those that the selection uses. If it uses none and the buffer stores references, labels are read from
    the data sets, once per entry.
    """

    def __init__(self) -> None:
        self.seen: set[int] = set()  # classes of which there was an entry at some time
        self._can_be_read = True
        self._numbers: Int64Array = np.zeros(0, dtype=np.int64)  # entries whose class was read, ascending
        self._labels: Int64Array = np.zeros(0, dtype=np.int64)

    def count(self, buffer: Memory) -> dict[int, int]:
        """Counts the entries.

        Args:
            buffer: The buffer, the same at each call.

        Returns:
            Number of entries by class, in ascending order, including classes that had entries before; -1 stands for
            unknown classes. Empty if no class is known or there are more than 1,000.
        """
        known: Int64Array = buffer.entries["label"].astype(np.int64)
        labels = known if np.any(known >= 0) else self._read(buffer)
        if labels is None:
            return {}
        found, counts = np.unique(labels, return_counts=True)
        by_class = dict(zip(found.tolist(), counts.tolist(), strict=True))
        if len(self.seen | by_class.keys()) > _MOST_CLASSES:
            return {}
        self.seen |= by_class.keys()
        return {label: by_class.get(label, 0) for label in sorted(self.seen)}

    def _read(self, buffer: Memory) -> Int64Array | None:
        """Reads the classes of the entries that came since the last time; `None` where they cannot be read."""
        if buffer.storage.keeps_contents or not self._can_be_read:
            return None
        numbers = buffer.entries["number"].astype(np.int64)
        order = np.argsort(numbers)
        numbers = numbers[order]
        was_read = np.isin(numbers, self._numbers, assume_unique=True)
        labels = np.empty(len(numbers), dtype=np.int64)
        labels[was_read] = self._labels[np.isin(self._numbers, numbers, assume_unique=True)]  # both are ascending
        if not was_read.all():
            read = buffer.sources.labels(buffer.addresses(order[~was_read]), buffer.label_column)
            if read is None:
                self._can_be_read = False
                return None
            labels[~was_read] = read
        self._numbers, self._labels = numbers, labels
        return labels
