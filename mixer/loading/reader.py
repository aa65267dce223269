"""Reads samples with one random key each, and names samples that fail."""

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import datasets
import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from mixer.loading.arrow import ArrowRows
from mixer.loading.collate import Columns
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.step_plan import StreamShare
from mixer.utils.arrays import Int64Array
from mixer.utils.random_state import RandomState, seed_generators


def reads_without_randomness(dataset: Any) -> bool:
    """Whether reading a sample is known to draw no random numbers."""
    if isinstance(dataset, datasets.Dataset):
        return bool(dataset.format["type"] != "custom")  # a transform set by `set_transform`
    if type(dataset) is ConcatDataset:
        return all(reads_without_randomness(part) for part in dataset.datasets)
    if type(dataset) is Subset:
        return reads_without_randomness(dataset.dataset)
    return type(dataset) in (TensorDataset, list, tuple, range) or bool(getattr(dataset, "draws_nothing", False))


@runtime_checkable
class ColumnReader(Protocol):
    """Dataset of equal-shaped tensors that draws no random numbers and can be read by column.

    With the Trainer's default collator, micro-batches are stacked directly from columns, with the same result and
    several times faster.
    """

    def read_columns(self, indices: Int64Array) -> Mapping[str, torch.Tensor]:
        """Reads several samples at once.

        Args:
            indices: int64 `[count]`: sample indices.

        Returns:
            For each column a tensor `[count, ...]` with its own memory.
        """


class SampleError(RuntimeError):
    """A sample could not be loaded; the message names the stream and the index."""


class StreamReader:
    """Reads samples of several datasets.

    A sample that draws random numbers draws them from generators seeded by its stream and position, independent of the
    process and of other samples; the surrounding random state is restored. Streams without randomness are read in one
    call.

    Args:
        names: Stream names.
        datasets: Their datasets.
        keys: Random key of each stream.
        are_random: Whether samples of each stream draw random numbers; `None` detects it.
        skipped: Streams whose unloadable samples are returned as `BrokenSample`.
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
        self._reads_batches = [hasattr(type(dataset), "__getitems__") for dataset in datasets]
        self.has_columns = _can_be_stacked(datasets)
        self._arrow = [ArrowRows.of(dataset) for dataset in datasets]
        self.is_arrow = all(rows is not None for rows in self._arrow)
        declared = list(are_random or [None] * len(datasets))
        self._is_plain = [
            _is_plain(dataset) if is_random is None else not is_random
            for dataset, is_random in zip(datasets, declared, strict=True)
        ]
        self._are_plain = all(self._is_plain)
        self._draws = [is_random is True for is_random in declared]
        # Stream and index of the current sample, -1 for several at once; in the shared memory of a worker, else `None`.
        self.place: Int64Array | None = None

    def describe(self, share: Sequence[StreamShare]) -> str:
        """Returns the stream names and dataset indices of a share as text."""
        return "; ".join(f"stream {self._names[part.stream_id]!r}, samples {part.indices.tolist()}" for part in share)

    def describe_place(self, stream_id: int, index: int) -> str:
        """Returns a recorded stream and index (-1 for several samples) as text."""
        return f"stream {self._names[stream_id]!r}, " + ("several samples" if index < 0 else f"sample {index}")

    def read(self, share: Sequence[StreamShare]) -> list[Any]:
        """Reads individual samples.

        Returns:
            Samples, stream by stream; a `BrokenSample` replaces one that cannot be loaded and may be skipped.

        Raises:
            SampleError: If a sample cannot be loaded and may not be skipped.
        """
        if self._are_plain or all(self._is_plain[part.stream_id] for part in share):
            samples: list[Any] = []
            for part in share:
                samples += self._read_together(part)
            return samples
        state = RandomState.capture()
        is_changed = True
        try:
            parts = [() if self._draws[part.stream_id] else self._read_together(part) for part in share]
            if not state.is_current():  # read them again, each sample with its own key
                for part in share:
                    self._draws[part.stream_id] = not self._is_plain[part.stream_id]
            is_changed = any(self._draws[part.stream_id] for part in share)
            if is_changed:
                pairs = zip(share, parts, strict=True)
                parts = [self._read_one_by_one(part) if self._draws[part.stream_id] else own for part, own in pairs]
            return list(itertools.chain.from_iterable(parts))
        finally:
            if is_changed:
                state.restore()

    def read_columns(self, share: Sequence[StreamShare]) -> Columns:
        """Reads samples by column.

        Returns:
            For each column a tensor `[num_samples, ...]`, stream by stream.

        Raises:
            SampleError: If they cannot be loaded, or columns of two streams do not match.
        """
        parts = [self._read_stream_columns(part) for part in share]
        if len(parts) == 1:
            return parts[0]
        try:
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        except (KeyError, RuntimeError) as error:
            names = [self._names[part.stream_id] for part in share]
            raise SampleError(f"The columns of the streams {names} cannot be stacked: {error}") from error

    def stack(self, share: Sequence[StreamShare], allows_lists: bool) -> Columns | None:
        """Reads rows of Arrow data sets by column, as the default collator stacks them; see `ArrowRows.stack`."""
        parts = []
        for part in share:
            rows = self._arrow[part.stream_id]
            views = None if rows is None else rows.views(part.indices)
            if rows is None or views is None:
                return None
            parts.append((rows, views))
        return parts[0][0].stack(parts, allows_lists) if parts else None

    def _read_stream_columns(self, part: StreamShare) -> Columns:
        self._note(part.stream_id, -1)
        try:
            columns: Columns = self._datasets[part.stream_id].read_columns(part.indices)
        except Exception as error:  # any error of a user's dataset is passed on with its sample
            self._read_again(part)
            raise self._error(part.stream_id, f"one of the samples {part.indices.tolist()}", error) from error
        return columns

    def _read_together(self, part: StreamShare) -> Sequence[Any]:
        """Reads samples in one call; after a failure one by one, if they may be skipped or may draw random numbers."""
        try:
            return self._read_at_once(part)
        except Exception as error:  # any error of a user's dataset is passed on with its sample
            samples, stream_id = self._read_again(part), part.stream_id
            is_final = self._is_plain[stream_id] or self._reads_batches[stream_id]
            if not is_final or stream_id in self._skipped:
                return samples
            if isinstance(error, SampleError):
                raise
            raise self._error(stream_id, f"one of the samples {part.indices.tolist()}", error) from error

    def _read_at_once(self, part: StreamShare) -> Sequence[Any]:
        stream_id, _, rows = part
        dataset, indices, arrow = self._datasets[stream_id], rows.tolist(), self._arrow[stream_id]
        if self.place is not None:
            self._note(stream_id, -1)
        if arrow is not None and (views := arrow.views(rows)) is not None:
            samples = arrow.samples(views)
        elif self._reads_batches[stream_id]:
            samples = dataset.__getitems__(indices)
        elif self.place is None:
            samples = [dataset[index] for index in indices]
        else:
            samples = [dataset[self._note(stream_id, index)] for index in indices]
        if len(samples) != len(indices):
            counts = f"{len(samples)} samples for {len(indices)} indices"
            raise SampleError(f"Stream {self._names[part.stream_id]!r}: __getitems__ returned {counts}.")
        if type(None) in map(type, samples):
            raise ValueError("a sample is None")
        return samples

    def _note(self, stream_id: int, index: int) -> int:
        """Notes where this worker is; returns the index."""
        if self.place is not None:
            self.place[:] = stream_id, index
        return index

    def _read_again(self, part: StreamShare) -> list[Any]:
        """Reads samples one by one after a failure, which names the one that fails."""
        state = RandomState.capture()
        try:
            return self._read_one_by_one(part)
        finally:
            state.restore()

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
        except Exception as error:  # any error of a user's dataset is passed on with its sample
            raise self._error(stream_id, f"sample {index}", error) from error
        if sample is None:
            name = self._names[stream_id]
            raise SampleError(f"Stream {name!r}: sample {index} is None. Remove it, or set on_sample_error='skip'.")
        return sample

    def _error(self, stream_id: int, which: str, error: Exception) -> SampleError:
        name, before, now = self._names[stream_id], self._lengths[stream_id], _length(self._datasets[stream_id])
        changed = "" if before == now else f" (its dataset had {before} samples when the run began and has {now} now)"
        return SampleError(f"Stream {name!r}: {which} could not be loaded: {type(error).__name__}: {error}{changed}")


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # rows and memories have no length; and the dataset may have just failed
        return None


def _can_be_stacked(datasets: Sequence[Any]) -> bool:
    """Whether all data sets are read by column, and the first samples of all have the same columns and shapes."""
    if not all(isinstance(dataset, ColumnReader) for dataset in datasets):
        return False
    forms = set()
    for dataset in datasets if len(datasets) > 1 else ():
        with contextlib.suppress(Exception):  # what is empty, or cannot be read, is reported when it is used
            columns = dataset.read_columns(np.zeros(1, dtype=np.int64))
            forms.add(frozenset((name, values.shape[1:]) for name, values in columns.items()))
    return len(forms) < 2


def _is_plain(dataset: Any) -> bool:
    return isinstance(dataset, ColumnReader) or reads_without_randomness(dataset)
