"""Data sets behind references: addresses of samples, and detection of changed data."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mixer.loading.reader import SampleError, reads_without_randomness
from mixer.utils.arrays import Int64Array
from mixer.utils.random_state import seeded
from replay.storage.codec import Row, encode
from replay.storage.labels import Labels

_INDEX_BITS = 40
_MAX_INDEX = 2**_INDEX_BITS
MAX_SOURCES = 2**22
_NUM_SAMPLES = 8


def addresses(source_id: int, indices: Any) -> Int64Array:
    """Makes addresses of samples.

    Args:
        source_id: Id of their source.
        indices: Whole numbers `[count]`: which ones.

    Returns:
        int64 `[count]`: `source_id << 40 | index`.

    Raises:
        ValueError: If a number is too large or negative.
    """
    array = np.asarray(indices, dtype=np.int64)
    if not 0 <= source_id < MAX_SOURCES:
        raise ValueError(f"source_id has to be in [0, 2^22), not {source_id}: a buffer remembers so many sources.")
    if array.size and not (array.min() >= 0 and array.max() < _MAX_INDEX):
        worst = array.min() if array.min() < 0 else array.max()
        raise ValueError(f"indices have to be in [0, 2^40), found {worst}. Count from the data set's beginning.")
    return np.int64(source_id << _INDEX_BITS) | array


def split(addresses: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Takes addresses apart.

    Args:
        addresses: int64 `[count]`.

    Returns:
        int64 `[count]` each: ids of the sources, and indices.
    """
    return addresses >> _INDEX_BITS, addresses & (_MAX_INDEX - 1)


def fingerprint(dataset: Any) -> str:
    """Makes a fingerprint of a data set's length, type and some evenly spread samples.

    Where samples cannot be read or encoded, or differ from one reading to the next, the length has to do.

    Args:
        dataset: A map-style data set.

    Returns:
        A text that is the same wherever the data set is.
    """
    length = len(dataset)
    content = _read(dataset, length)
    is_stable = reads_without_randomness(dataset) or (content is not None and _read(dataset, length) == content)
    if content is None or not is_stable:
        return f"length {length}"
    return hashlib.blake2b(f"{type(dataset).__qualname__} {length} {content}".encode(), digest_size=16).hexdigest()


def _read(dataset: Any, length: int) -> list[str] | None:
    indices = np.unique(np.linspace(0, length - 1, _NUM_SAMPLES).astype(np.int64)).tolist() if length else []
    try:
        with seeded(0):
            samples = [dataset[index] for index in indices]
    except Exception:  # whether a broken sample ends a run is said where it is trained on
        return None
    try:
        return [hashlib.blake2b(encode(Row(sample)), digest_size=16).hexdigest() for sample in samples]
    except TypeError:
        return None


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
            raise SampleError(f"Source {self.name!r}: __getitems__ returned {counts}.")
        return samples
