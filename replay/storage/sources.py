"""Data sets behind references: addresses of samples, and detection of changed data."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from mixer.loading.reader import ColumnReader, SampleError, reads_without_randomness
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import seeded
from replay.storage.codec import Row, encode
from replay.storage.labels import Labels

_INDEX_BITS = 40
_MAX_INDEX = 2**_INDEX_BITS
_NUM_SAMPLES = 8


def addresses(source_id: int, indices: Any) -> Int64Array:
    """Makes addresses of samples.

    Args:
        source_id: Id of their source.
        indices: Whole numbers `[count]`: which ones.

    Returns:
        int64 `[count]`: `source_id << 40 | index`.

    Raises:
        ValueError: If an index is too large or negative.
    """
    array = np.asarray(indices, dtype=np.int64)
    if array.size and not (array.min() >= 0 and array.max() < _MAX_INDEX):
        worst = array.min() if array.min() < 0 else array.max()
        raise InvalidValueError(option="indices", expected="in [0, 2^40)", found=int(worst))
    return np.int64(source_id << _INDEX_BITS) | array


def split(addresses: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Splits addresses.

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
    if content is None or not (reads_without_randomness(dataset) or _read(dataset, length) == content):
        return f"length {length}"
    return hashlib.blake2b(f"{type(dataset).__qualname__} {length} {content}".encode(), digest_size=16).hexdigest()


def _read(dataset: Any, length: int) -> list[str] | None:
    indices = np.unique(np.linspace(0, length - 1, _NUM_SAMPLES).astype(np.int64)).tolist() if length else []
    try:
        with seeded(0):
            samples = [dataset[index] for index in indices]
        return [encode(Row(sample)).digest for sample in samples]
    except Exception:  # whether a broken sample ends a run is said where it is trained on
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
    _labels: dict[str | None, Labels] = field(default_factory=dict, init=False, compare=False, repr=False)

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

    def read(self, indices: Sequence[int]) -> Sequence[Any]:
        """Reads samples.

        Args:
            indices: Which ones.

        Returns:
            The samples.

        Raises:
            SampleError: If one cannot be loaded.
        """
        try:
            if not hasattr(self.dataset, "__getitems__"):
                return [self.dataset[index] for index in indices]
            samples: Sequence[Any] = self.dataset.__getitems__(list(indices))
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            place = f"Source {self.name!r}: one of the samples {list(indices)}"
            raise SampleError(f"{place} could not be loaded: {type(error).__name__}: {error}") from error
        if len(samples) != len(indices):
            counts = f"{len(samples)} samples for {len(indices)} indices"
            raise SampleError(f"Source {self.name!r}: __getitems__ returned {counts}.")
        return samples


class Sources:
    """Data sets by name; ids, which are part of addresses, follow the order of first addition."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names by id, also of those that are not there any more."""
        return tuple(source.name for source in self._sources)

    @property
    def has_columns(self) -> bool:
        """Whether all that are there can be read by columns."""
        return bool(self.datasets) and all(isinstance(dataset, ColumnReader) for dataset in self.datasets)

    @property
    def datasets(self) -> tuple[Any, ...]:
        """The data sets that are there."""
        return tuple(source.dataset for source in self._sources if source.dataset is not None)

    def add(self, name: str, dataset: Any, is_read: bool = True) -> int:
        """Adds a data set, or gives one that was saved with the references.

        Args:
            name: Its name.
            dataset: A map-style data set, which must not change.
            is_read: Whether samples are read from it. If not, another data set of a known name is a source of its own,
                and the known one is called otherwise from then on.

        Returns:
            Its id; that of before if it was added already.

        Raises:
            ValueError: If another data set has the name, or there are too many.
        """
        for source_id, known in enumerate(self._sources):
            if known.name == name and known.dataset is dataset:
                return source_id
        return self._take(Source(name, len(dataset), fingerprint(dataset), dataset), is_read)

    def _take(self, source: Source, is_read: bool) -> int:
        """Adds a source, or puts it in the place of the same one; returns its id."""
        if source.name in self.names:
            source_id = self.names.index(source.name)
            known, number = self._sources[source_id], 1
            is_same = (known.length, known.fingerprint) == (source.length, source.fingerprint)
            if is_read and not is_same:
                what = "some of its samples, or its type, are others"
                if known.length != source.length:
                    what = f"it had {known.length} samples and has {source.length}"
                text = (
                    f"Source {known.name!r} has changed since a buffer took references into it: {what}. Give the same "
                    "data set as before, or the new one another name, or keep contents in the buffer."
                )
                raise InvalidValueError(text, option="dataset", stream=known.name, found=source.length)
            if is_same:
                self._sources[source_id] = source
                return source_id
            while f"{known.name} ({number})" in self.names:
                number += 1
            self._sources[source_id] = replace(known, name=f"{known.name} ({number})", dataset=None)
        self._sources.append(source)
        return len(self._sources) - 1

    def add_unreadable(self, name: str) -> int:
        """Adds a source whose samples cannot be read by index, for its id.

        Args:
            name: Its name.

        Returns:
            Its id; that of before if it was added already.
        """
        return self.names.index(name) if name in self.names else self._take(Source(name, 0, "none"), is_read=True)

    def replaced(self, datasets: Mapping[str, Any]) -> "Sources":
        """Replaces some data sets by other objects, such as ones without the columns that a model does not use.

        Args:
            datasets: By name; they are not compared with what was there, but for the length.

        Returns:
            Sources of the same names, ids and fingerprints.

        Raises:
            ValueError: If a length differs.
        """
        result = Sources()
        result._sources = list(self._sources)
        for name, dataset in datasets.items():
            known = self._sources[self.names.index(name)]
            if len(dataset) != known.length:
                expected = f"of {known.length} samples"
                raise InvalidValueError(option="dataset", stream=name, expected=expected, found=len(dataset))
            result._sources[self.names.index(name)] = replace(known, dataset=dataset)
        return result

    def read(self, addresses: Int64Array) -> list[Any]:
        """Reads samples.

        Args:
            addresses: int64 `[count]`.

        Returns:
            The samples in that order.

        Raises:
            ValueError: If a data set is not there any more.
            SampleError: If a sample cannot be loaded.
        """
        samples: list[Any] = [None] * len(addresses)
        for source, positions, indices in self._runs(addresses):
            for position, sample in zip(positions.tolist(), source.read(indices.tolist()), strict=True):
                samples[position] = sample
        return samples

    def read_columns(self, addresses: Int64Array) -> dict[str, torch.Tensor]:
        """Reads samples by columns, if `has_columns`.

        Args:
            addresses: int64 `[count]`, at least one.

        Returns:
            For each column a tensor `[count, ...]`.

        Raises:
            ValueError: If a data set is not there any more.
        """
        runs = list(self._runs(addresses))
        parts = [source.dataset.read_columns(indices) for source, _, indices in runs]
        places = torch.from_numpy(np.argsort(np.concatenate([positions for _, positions, _ in runs])))
        return {name: torch.cat([part[name] for part in parts])[places] for name in parts[0]}

    def labels(self, addresses: Int64Array, column: str | None = None) -> Int64Array | None:
        """Reads labels without reading whole samples.

        Args:
            addresses: int64 `[count]`.
            column: Name of the column or attribute; `None` looks for one, see `replay.storage.labels.Labels`.

        Returns:
            int64 `[count]`, or `None` if a data set does not offer them so.

        Raises:
            ValueError: If a data set is not there any more.
        """
        labels = np.empty(len(addresses), dtype=np.int64)
        for source, positions, indices in self._runs(addresses):
            part = source.labels(indices, column)
            if part is None:
                return None
            labels[positions] = part
        return labels

    def state_dict(self) -> dict[str, Any]:
        """Returns what references need to be recognised again, JSON-safe.

        Returns:
            The state.
        """
        keys = ("name", "length", "fingerprint")
        return {"sources": [{key: getattr(source, key) for key in keys} for source in self._sources]}

    def load_state_dict(self, state: Mapping[str, Any], is_read: bool = True) -> None:
        """Loads a saved state, whose ids replace the present ones: ask `names` or `add` for them again.

        Data sets that were added before, or are after, are compared with those of then.

        Args:
            state: The result of `state_dict`.
            is_read: See `add`.

        Raises:
            ValueError: If a data set has changed; it is named.
        """
        added, self._sources = self._sources, [Source(**entry) for entry in state["sources"]]
        for source in added:
            self._take(source, is_read)

    def _runs(self, addresses: Int64Array) -> Iterator[tuple[Source, Int64Array, Int64Array]]:
        """Yields each source with the positions of its addresses and their indices."""
        ids, indices = split(np.asarray(addresses, dtype=np.int64))
        order = np.argsort(ids, kind="stable")
        for positions in np.split(order, np.flatnonzero(np.diff(ids[order])) + 1) if len(order) else ():
            source_id = int(ids[positions[0]])
            if not 0 <= source_id < len(self._sources):
                hint = "Workers do not know one that is added late: remember(name, dataset, []) before the run."
                expected = f"below {len(self._sources)}, the number of sources"
                raise InvalidValueError(option="source_id", expected=expected, found=source_id, hint=hint)
            source = self._sources[source_id]
            if source.dataset is None:
                text = (
                    f"A buffer refers to samples of {source.name!r}, whose data set is not there. Give it again "
                    f"before the run, by remember({source.name!r}, dataset, []), or keep contents in the buffer."
                )
                raise InvalidValueError(text, option="dataset", stream=source.name)
            yield source, positions, indices[positions]
