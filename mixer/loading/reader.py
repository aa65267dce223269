"""Reads samples, each with its own random key, and names the one that failed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import datasets
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    DefaultDataCollator,
    default_data_collator,
)
from transformers.trainer_utils import RemoveColumnsCollator

from mixer.loading.transport import Columns
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.cursors import StreamShare
from mixer.utils.arrays import Int64Array
from mixer.utils.random_state import RandomState, seed_generators

_FUNCTIONS = (default_data_collator, default_collate)
_COLLATORS = (
    DataCollatorWithPadding,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DefaultDataCollator,
)


def reads_without_randomness(dataset: Any) -> bool:
    """Says whether a data set is of a kind that draws nothing when a sample is read.

    Args:
        dataset: A map-style data set.

    Returns:
        `False` where it is not known.
    """
    if isinstance(dataset, datasets.Dataset):
        return bool(dataset.format["type"] != "custom")  # a transform set by `set_transform`
    if type(dataset) is ConcatDataset:
        return all(reads_without_randomness(part) for part in dataset.datasets)
    if type(dataset) is Subset:
        return reads_without_randomness(dataset.dataset)
    return type(dataset) in (TensorDataset, list, tuple, range) or bool(getattr(dataset, "draws_nothing", False))


def collates_without_randomness(collator: Any) -> bool:
    """Says whether a collator is of a kind that draws nothing.

    Args:
        collator: A collator.

    Returns:
        `False` where it is not known.
    """
    if type(collator) is RemoveColumnsCollator:
        collator = collator.data_collator
    if type(collator) is DataCollatorForLanguageModeling:
        return not collator.mlm
    return collator in _FUNCTIONS or type(collator) in _COLLATORS


@runtime_checkable
class _BatchReader(Protocol):
    def __getitems__(self, indices: list[int]) -> Sequence[Any]: ...


@runtime_checkable
class ColumnReader(Protocol):
    """A data set whose samples are equal-shaped tensors, draw no random numbers and can be read by columns.

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

    A sample that draws random numbers draws them from generators that are seeded by its stream and position, whoever
    reads it and beside which others; the surrounding state is put back. Streams whose samples draw nothing are read in
    one call.

    Args:
        names: Names of the streams.
        datasets: Their data sets.
        keys: A random key for each stream.
        are_random: Whether samples of each stream draw random numbers; `None` finds out.
        skipped: The streams of which samples that cannot be loaded are given as `BrokenSample`.
    """

    def __init__(
        self,
        names: Sequence[str],
        datasets: Sequence[Any],
        keys: Sequence[int],
        are_random: Sequence[bool | None] | None = None,
        skipped: Collection[int] = (),
    ):
        self._names, self._datasets, self._keys = tuple(names), tuple(datasets), tuple(keys)
        self._skipped = frozenset(skipped)
        self._lengths = [_length(dataset) for dataset in datasets]
        self._batch_readers = [dataset if isinstance(dataset, _BatchReader) else None for dataset in datasets]
        self._column_readers = [dataset for dataset in datasets if isinstance(dataset, ColumnReader)]
        told = list(are_random or [None] * len(datasets))
        self._is_plain = [
            is_random is False or (is_random is None and _is_plain(dataset))
            for dataset, is_random in zip(datasets, told, strict=True)
        ]
        self._draws = [is_random is True for is_random in told]
        self._place: Int64Array | None = None

    @property
    def has_columns(self) -> bool:
        """Whether all data sets can be read by columns."""
        return len(self._column_readers) == len(self._datasets)

    def note_place(self, place: Int64Array) -> None:
        """Has the reader note which sample it is at, for those who look on from another process.

        Args:
            place: int64 `[2]`: overwritten with the stream and the index, -1 for several at once.
        """
        self._place = place

    def describe(self, share: Sequence[StreamShare]) -> str:
        """Says which samples a share consists of.

        Args:
            share: What is, or was, to be read.

        Returns:
            The streams' names and the indices into their data sets.
        """
        return "; ".join(f"stream {self._names[part.stream_id]!r}, samples {part.indices.tolist()}" for part in share)

    def describe_place(self, stream_id: int, index: int) -> str:
        """Says what a noted place means.

        Args:
            stream_id: The stream.
            index: The index, or -1.

        Returns:
            The stream's name and the index.
        """
        return f"stream {self._names[stream_id]!r}, " + ("several samples" if index < 0 else f"sample {index}")

    def read(self, share: Sequence[StreamShare]) -> list[Any]:
        """Reads single samples.

        Args:
            share: What is to be read.

        Returns:
            The samples, stream after stream; a `BrokenSample` for one that cannot be loaded and may be skipped.

        Raises:
            SampleError: If one cannot be loaded that may not.
        """
        if all(self._is_plain[part.stream_id] for part in share):
            return [sample for part in share for sample in self._read_or_skip(part)]
        state = RandomState.capture()
        is_changed = True
        try:
            parts = [() if self._draws[part.stream_id] else self._read_if_plain(part) for part in share]
            if not state.is_current():  # they have to be read anew, each sample by its own key
                for part in share:
                    self._draws[part.stream_id] = not self._is_plain[part.stream_id]
            is_changed = any(self._draws[part.stream_id] for part in share)
            return [
                sample
                for part, samples in zip(share, parts, strict=True)
                for sample in (self._read_one_by_one(part) if self._draws[part.stream_id] else samples)
            ]
        finally:
            if is_changed:
                state.restore()

    def read_columns(self, share: Sequence[StreamShare]) -> Columns:
        """Reads samples by columns.

        Args:
            share: What is to be read.

        Returns:
            For each column a tensor `[num_samples, ...]`, stream after stream.

        Raises:
            SampleError: If they cannot be loaded, or the columns of two streams do not fit together.
        """
        parts = [self._read_stream_columns(part) for part in share]
        if len(parts) == 1:
            return parts[0]
        try:
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        except (KeyError, RuntimeError) as error:
            names = [self._names[part.stream_id] for part in share]
            raise SampleError(f"The columns of the streams {names} cannot be stacked together: {error}") from error

    def _read_stream_columns(self, part: StreamShare) -> Columns:
        self._note(part.stream_id, -1)
        try:
            return self._column_readers[part.stream_id].read_columns(part.indices)
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            raise self._sample_error(part, error) from error

    def _read_or_skip(self, part: StreamShare) -> Sequence[Any]:
        """Reads samples in one call; one by one where one fails that may be skipped."""
        if part.stream_id not in self._skipped:
            return self._read_at_once(part)
        try:
            return self._read_at_once(part)
        except SampleError:
            state = RandomState.capture()
            try:
                return self._read_one_by_one(part)
            finally:
                state.restore()

    def _read_at_once(self, part: StreamShare) -> Sequence[Any]:
        reader, indices = self._batch_readers[part.stream_id], part.indices.tolist()
        if reader is None and self._place is not None:
            return self._read_noting(part, self._place)
        self._note(part.stream_id, -1)
        try:
            if reader is None:
                dataset = self._datasets[part.stream_id]
                samples: Sequence[Any] = [dataset[index] for index in indices]
            else:
                samples = reader.__getitems__(indices)
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            raise self._sample_error(part, error) from error
        if len(samples) != len(part.indices):
            counts = f"{len(samples)} samples for {len(part.indices)} indices"
            raise SampleError(f"Stream {self._names[part.stream_id]!r}: __getitems__ gave {counts}.")
        for index, sample in zip(indices, samples, strict=True):
            self._check_is_there(part.stream_id, index, sample)
        return samples

    def _read_noting(self, part: StreamShare, place: Int64Array) -> list[Any]:
        """Reads sample by sample, noting each before: where a worker dies, the note is what is left."""
        dataset, samples = self._datasets[part.stream_id], []
        place[0], index = part.stream_id, -1
        try:
            for index in part.indices.tolist():
                place[1] = index
                samples.append(dataset[index])
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            raise self._error(part.stream_id, f"sample {index}", error) from error
        for index, sample in zip(part.indices.tolist(), samples, strict=True):
            self._check_is_there(part.stream_id, index, sample)
        return samples

    def _read_if_plain(self, part: StreamShare) -> Sequence[Any]:
        """Reads samples that may draw random numbers; one that fails is given the ones that it should draw."""
        try:
            return self._read_or_skip(part)
        except SampleError:
            if self._is_plain[part.stream_id] or self._batch_readers[part.stream_id] is not None:
                raise
            return self._read_one_by_one(part)

    def _read_one_by_one(self, part: StreamShare) -> list[Any]:
        samples: list[Any] = []
        for position, index in zip(part.positions, part.indices.tolist(), strict=True):
            seed_generators(self._keys[part.stream_id], int(position))
            try:
                samples.append(self._read_sample(part.stream_id, index))
            except SampleError as error:
                if part.stream_id not in self._skipped:
                    raise
                samples.append(BrokenSample(str(error)))
        return samples

    def _read_sample(self, stream_id: int, index: int) -> Any:
        self._note(stream_id, index)
        try:
            sample = self._datasets[stream_id][index]
        except Exception as error:  # whatever a user's data set raises is passed on, with the place
            raise self._error(stream_id, f"sample {index}", error) from error
        self._check_is_there(stream_id, index, sample)
        return sample

    def _check_is_there(self, stream_id: int, index: int, sample: Any) -> None:
        if sample is None:
            raise SampleError(
                f"Stream {self._names[stream_id]!r}: sample {index} is None. Leave out beforehand what the data set or "
                "its preprocess has no sample for, or skip it: on_sample_error='skip'."
            )

    def _sample_error(self, part: StreamShare, error: Exception) -> SampleError:
        """Finds out which sample of several failed."""
        if part.stream_id not in self._skipped:  # else they are read one by one at once
            state = RandomState.capture()
            try:
                self._read_one_by_one(part)
            except SampleError as single:
                return single
            finally:
                state.restore()
        return self._error(part.stream_id, f"one of the samples {part.indices.tolist()}", error)

    def _error(self, stream_id: int, which: str, error: Exception) -> SampleError:
        name, before, now = self._names[stream_id], self._lengths[stream_id], _length(self._datasets[stream_id])
        changed = "" if before == now else f" (its data set had {before} samples when the run began and has {now} now)"
        return SampleError(f"Stream {name!r}: {which} could not be loaded: {type(error).__name__}: {error}{changed}")

    def _note(self, stream_id: int, index: int) -> None:
        if self._place is not None:
            self._place[:] = stream_id, index


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # of rows, or what a memory gives; and it is asked once more where the data set has just failed
        return None


def _is_plain(dataset: Any) -> bool:
    return isinstance(dataset, ColumnReader) or reads_without_randomness(dataset)
