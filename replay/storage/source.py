"""A data set that references point into, and whether it is still the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mixer.loading.reader import SampleError
from mixer.utils.arrays import Int64Array
from replay.storage.fingerprint import fingerprint
from replay.storage.labels import Labels


@dataclass(frozen=True)
class Source:
    """A data set under a name.

    Args:
        name: The name.
        length: Number of its samples.
        fingerprint: What it is recognised by.
        dataset: The data set; `None` if it is not there any more.
    """

    name: str
    length: int
    fingerprint: str
    dataset: Any = None

    @classmethod
    def of(cls, name: str, dataset: Any) -> "Source":
        """Takes a data set.

        Args:
            name: Its name.
            dataset: A map-style data set.

        Returns:
            The source.
        """
        return cls(name, len(dataset), fingerprint(dataset), dataset)

    def is_same(self, other: "Source") -> bool:
        """Says whether this is the same data set as what has the same name now."""
        return (self.length, self.fingerprint) == (other.length, other.fingerprint)

    def check_same(self, other: "Source") -> None:
        """Compares with what has the same name now.

        Args:
            other: The other source.

        Raises:
            ValueError: If it is another data set.
        """
        if self.is_same(other):
            return
        what = "some of its samples, or its type, are others"
        if self.length != other.length:
            what = f"it had {self.length} samples and has {other.length}"
        raise ValueError(
            f"Source {self.name!r} has changed since a buffer took references into it: {what}. Give the same data set "
            "as before, give the new one another name, or keep contents in the buffer, in memory or on disk."
        )

    def labels(self, indices: Int64Array, column: str | None = None) -> Int64Array | None:
        """Reads labels without reading whole samples.

        Args:
            indices: int64 `[count]`: which samples.
            column: Name of the column or attribute; `None` looks for one, see `replay.storage.labels.Labels`.

        Returns:
            int64 `[count]`, or `None` if the data set does not offer them so.
        """
        if column not in self._labels:
            self._labels[column] = Labels(self.dataset, column)
        return self._labels[column].read(indices)

    @cached_property
    def _labels(self) -> dict[str | None, Labels]:
        return {}

    def read(self, indices: Sequence[int]) -> Sequence[Any]:
        """Reads samples.

        Args:
            indices: Which ones.

        Returns:
            The samples.

        Raises:
            SampleError: If one cannot be loaded.
        """
        read_several = getattr(self.dataset, "__getitems__", None)
        try:
            if read_several is None:
                return [self.dataset[index] for index in indices]
            samples: Sequence[Any] = read_several(list(indices))
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            place = f"Source {self.name!r}: one of the samples {list(indices)}"
            raise SampleError(f"{place} could not be loaded: {type(error).__name__}: {error}") from error
        if len(samples) != len(indices):
            counts = f"{len(samples)} samples for {len(indices)} indices"
            raise SampleError(f"Source {self.name!r}: __getitems__ gave {counts}.")
        return samples
