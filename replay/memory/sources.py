"""The data sets that the references of a buffer point into."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mixer.loading.reader import ColumnReader
from mixer.utils.arrays import Int64Array
from replay.storage.source import MAX_SOURCES, Source, addresses, split

__all__ = ["Sources", "addresses", "split"]


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

    def fingerprints(self) -> dict[str, str]:
        """Gives what each is recognised by.

        Returns:
            The fingerprints, by name.
        """
        return {source.name: source.fingerprint for source in self._sources}

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
        if name not in self.names:
            if len(self._sources) == MAX_SOURCES:
                raise ValueError(f"There are {MAX_SOURCES} sources, as many as can be. Join some to one data set.")
            self._sources.append(Source.of(name, dataset))
            return len(self._sources) - 1
        source_id = self.names.index(name)
        known = self._sources[source_id]
        if known.dataset is not dataset:
            found = Source.of(name, dataset)
            if not is_read and not known.is_same(found):
                self._put_by(source_id)
                return self.add(name, dataset)
            known.check_same(found)
            self._sources[source_id] = replace(known, dataset=dataset)
        return source_id

    def _put_by(self, source_id: int) -> None:
        """Gives a source whose name another data set has now a name that nobody has."""
        known, number = self._sources[source_id], 1
        while f"{known.name} ({number})" in self.names:
            number += 1
        self._sources[source_id] = replace(known, name=f"{known.name} ({number})", dataset=None)

    def add_unreadable(self, name: str) -> int:
        """Adds a source whose samples cannot be read by index, for its id.

        Args:
            name: Its name.

        Returns:
            Its id; that of before if it was added already.
        """
        if name not in self.names:
            self._sources.append(Source(name, 0, "none"))
        return self.names.index(name)

    def replaced(self, datasets: Mapping[str, Any]) -> "Sources":
        """Takes other objects for some data sets, such as ones without the columns that a model does not use.

        Args:
            datasets: By name; they are not compared with what was there, but for the length.

        Returns:
            Sources of the same names, ids and fingerprints.

        Raises:
            ValueError: If a name is unknown or a length differs.
        """
        result = Sources()
        result._sources = list(self._sources)
        for name, dataset in datasets.items():
            if name not in self.names:
                raise ValueError(f"There is no source {name!r} that could be replaced, only {list(self.names)}.")
            known = self._sources[self.names.index(name)]
            if len(dataset) != known.length:
                raise ValueError(f"Source {name!r} has {known.length} samples, what replaces it {len(dataset)}.")
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
        """Gives what the references need to be recognised again, JSON-safe.

        Returns:
            The state.
        """
        keys = ("name", "length", "fingerprint")
        return {"sources": [{key: getattr(source, key) for key in keys} for source in self._sources]}

    def load_state_dict(self, state: Mapping[str, Any], is_read: bool = True) -> None:
        """Takes up a saved state: ids are those of then, so ask `names` or `add` for them again.

        Data sets that were added before, or are after, are compared with those of then.

        Args:
            state: What `state_dict` gave.
            is_read: See `add`.

        Raises:
            ValueError: If a data set has changed; it is named.
        """
        added = self._sources
        self._sources = [Source(**entry) for entry in state["sources"]]
        for source in added:
            if source.name in self.names:
                source_id = self.names.index(source.name)
                known = self._sources[source_id]
                if is_read or known.is_same(source):
                    known.check_same(source)
                    self._sources[source_id] = source
                    continue
                self._put_by(source_id)
            self._sources.append(source)

    def _runs(self, addresses: Int64Array) -> Iterator[tuple[Source, Int64Array, Int64Array]]:
        """Gives each source with the positions of its addresses and their indices."""
        ids, indices = split(np.asarray(addresses, dtype=np.int64))
        order = np.argsort(ids, kind="stable")
        for positions in np.split(order, np.flatnonzero(np.diff(ids[order])) + 1) if len(order) else ():
            source_id = int(ids[positions[0]])
            if not 0 <= source_id < len(self._sources):
                raise ValueError(
                    f"An address is of source {source_id}, but there are {len(self._sources)} sources. One that is "
                    "added while workers load is not known to them: give it to the buffer before the run begins, by "
                    "remember(name, dataset, []), or do without workers."
                )
            source = self._sources[source_id]
            if source.dataset is None:
                raise ValueError(
                    f"A buffer refers to samples of {source.name!r}, whose data set is not there. Give it again "
                    f"before the run, by remember({source.name!r}, dataset, []), or keep contents in the buffer, in "
                    "memory or on disk."
                )
            yield source, positions, indices[positions]
