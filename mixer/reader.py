"""Reads samples of the streams' data sets, in one call a stream, and says which one failed."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
Columns = Mapping[str, torch.Tensor]
Share = Sequence[tuple[int, Int64Array]]


@runtime_checkable
class _BatchReader(Protocol):
    def __getitems__(self, indices: list[int]) -> Sequence[Any]: ...


@runtime_checkable
class ColumnReader(Protocol):
    """A data set whose samples are equal-shaped tensors and can be read by columns.

    With the Trainer's default collator, micro-batches are then stacked without going through single samples: the
    result is the same and several times faster.
    """

    def read_columns(self, indices: Int64Array) -> Mapping[str, torch.Tensor]:
        """Reads several samples at once.

        Args:
            indices: int64 `[count]`: which ones.

        Returns:
            For each column a tensor `[count, ...]` of its own memory.
        """


class SampleError(RuntimeError):
    """A sample could not be loaded; the stream and the index are in the message."""


class StreamReader:
    """Reads samples of several data sets.

    Args:
        names: Names of the streams.
        datasets: Their data sets.
    """

    def __init__(self, names: Sequence[str], datasets: Sequence[Any]):
        self._names, self._datasets = tuple(names), tuple(datasets)
        self._batch_readers = [dataset if isinstance(dataset, _BatchReader) else None for dataset in datasets]
        self._column_readers = [dataset for dataset in datasets if isinstance(dataset, ColumnReader)]

    @property
    def has_columns(self) -> bool:
        """Whether all data sets can be read by columns."""
        return len(self._column_readers) == len(self._datasets)

    def read(self, share: Share) -> list[Any]:
        """Reads single samples.

        Args:
            share: Stream ids and int64 `[count]` indices into their data sets.

        Returns:
            The samples, stream after stream.

        Raises:
            SampleError: If one cannot be loaded.
        """
        samples: list[Any] = []
        for stream_id, indices in share:
            samples += self._read_stream(stream_id, indices.tolist())
        return samples

    def read_columns(self, share: Share) -> Columns:
        """Reads samples by columns.

        Args:
            share: Stream ids and int64 `[count]` indices into their data sets.

        Returns:
            For each column a tensor `[num_samples, ...]`, stream after stream.

        Raises:
            SampleError: If they cannot be loaded, or the columns of two streams do not fit together.
        """
        parts = [self._read_stream_columns(stream_id, indices) for stream_id, indices in share]
        if len(parts) == 1:
            return parts[0]
        try:
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        except (KeyError, RuntimeError) as error:
            names = [self._names[stream_id] for stream_id, _ in share]
            raise SampleError(f"The columns of the streams {names} cannot be stacked together: {error}") from error

    def _read_stream_columns(self, stream_id: int, indices: Int64Array) -> Columns:
        try:
            return self._column_readers[stream_id].read_columns(indices)
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            raise self._sample_error(stream_id, indices.tolist(), error) from error

    def _read_stream(self, stream_id: int, indices: list[int]) -> Sequence[Any]:
        reader, dataset = self._batch_readers[stream_id], self._datasets[stream_id]
        try:
            samples = [dataset[index] for index in indices] if reader is None else reader.__getitems__(indices)
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            raise self._sample_error(stream_id, indices, error) from error
        if len(samples) != len(indices):
            name = self._names[stream_id]
            raise SampleError(f"Stream {name!r}: __getitems__ gave {len(samples)} samples for {len(indices)} indices.")
        return samples

    def _sample_error(self, stream_id: int, indices: list[int], error: Exception) -> SampleError:
        name, where = self._names[stream_id], f"one of the samples {indices}"
        for index in indices:
            try:
                self._datasets[stream_id][index]
            except Exception as single:
                where, error = f"sample {index}", single
                break
        return SampleError(f"Stream {name!r}: {where} could not be loaded: {type(error).__name__}: {error}")
