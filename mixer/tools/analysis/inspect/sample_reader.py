"""Reads samples of a data set for inspection; a sample that cannot be read is recorded and skipped."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import datasets

from mixer.loading.preprocessing import preprocessed
from mixer.mixture.stream import Stream, is_iterable
from mixer.utils.random_state import seeded
from mixer.utils.text import in_words, shortened

_BLOCK_SIZE = 1000


@dataclass
class Faults:
    """Samples with one kind of fault.

    Args:
        number: Number of samples.
        index: Index of the first one; in an iterable data set, its position.
        example: Its fault: the error that reading it raised, or the unknown token or label.
    """

    number: int = 0
    index: int | None = None
    example: str | int | None = None

    def add(self, index: int, example: str | int) -> None:
        """Counts a sample."""
        if not self.number:
            self.index, self.example = index, example
        self.number += 1


class SampleReading:
    """Reads a data set, or a part of it that depends on the seed alone.

    Samples of an indexed data set are drawn without replacement and read in ascending order. An iterable data set is
    read from its beginning, up to the first row that cannot be read.

    Args:
        dataset: The data set: indexed or iterable.
        most: Maximum number of samples to read.
        seed: Seed of the draw, and of random transforms in the data set.
        columns: Columns of interest; others are skipped where the data set allows it.
    """

    def __init__(self, dataset: Any, most: int, seed: int = 0, columns: Sequence[str] = ()):
        self.broken = Faults()
        self.size: int | None = None if is_iterable(dataset) else len(dataset)
        self.is_whole = self.size is not None and self.size <= most
        self._dataset, self._most, self._seed = _with_columns(dataset, columns), most, seed

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        with seeded(self._seed):  # random transforms repeat, and do not disturb the caller's generators
            if self.size is None:
                yield from self._rows()
                return
            indices = sorted(random.Random(self._seed).sample(range(self.size), min(self.size, self._most)))
            for start in range(0, len(indices), _BLOCK_SIZE):
                yield from self._samples(indices[start : start + _BLOCK_SIZE])

    def _samples(self, indices: list[int]) -> Iterator[tuple[int, Any]]:
        """Reads samples together, or after an error one by one."""
        try:
            read = getattr(self._dataset, "__getitems__", None) if len(indices) > 1 else None
            samples = [self._dataset[index] for index in indices] if read is None else read(indices)
        except Exception as error:
            if len(indices) == 1:
                self.broken.add(indices[0], _short(error))
                return
            for index in indices:
                yield from self._samples([index])
        else:
            yield from zip(indices, samples, strict=True)

    def _rows(self) -> Iterator[tuple[int, Any]]:
        position = 0
        try:
            for row in self._dataset:
                if position == self._most:
                    return
                yield position, row
                position += 1
        except Exception as error:
            self.broken.add(position, _short(error))
        else:
            self.is_whole, self.size = True, position


def readable(stream: Stream) -> Any:
    """Returns a stream's data set with its `preprocess` applied; an empty one for a memory, which the run fills."""
    return [] if stream.is_memory else preprocessed(stream.dataset, stream.preprocess)


def _short(error: Exception) -> str:
    return shortened(in_words(error), 300)


def _with_columns(dataset: Any, columns: Sequence[str]) -> Any:
    """Selects the columns of a tokenised data set and reads them as arrays, which is several times faster."""
    if not isinstance(dataset, datasets.Dataset) or dataset.format["type"] is not None:
        return dataset
    known = [name for name in columns if name in dataset.column_names]
    return dataset.select_columns(known).with_format("numpy") if "input_ids" in known else dataset
