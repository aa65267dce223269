"""Class counts of the entries of a buffer, for the ledger."""

import numpy as np
import pandas as pd

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
        self._labels = pd.Series(dtype="Int64")  # classes that were read, by number of the entry

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
        labels = self._labels.reindex(buffer.entries["number"].copy())  # the entries change in place
        is_new = labels.isna().to_numpy()
        if is_new.any():
            read = buffer.sources.labels(buffer.addresses(np.flatnonzero(is_new)), buffer.label_column)
            if read is None:
                self._can_be_read = False
                return None
            labels.loc[is_new] = read
        self._labels = labels
        return labels.to_numpy(np.int64)
