"""Reads samples of a data set for a look at them; one that cannot be read is noted and does not end the look."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from mixer.loading.preprocessing import preprocessed
from mixer.mixture.stream import Stream, is_iterable
from mixer.utils.random_state import seeded
from mixer.utils.text import shortened

SAMPLES_AT_ONCE = 1000
_MOST_KEPT = 5


@dataclass(frozen=True)
class Broken:
    """A sample that cannot be read.

    Args:
        index: Its index in the data set; of a data set that can only be iterated, how many were read before.
        error: What was raised.
    """

    index: int
    error: str


class SampleReading:
    """Reads all samples of a data set, or as many as are asked for, the same ones for the same seed.

    Of a data set that can be indexed they are drawn without repetition and read in the order of their indices; of an
    iterable one they are the first, and a row that cannot be read is the last.

    Args:
        dataset: The data set: indexed or iterable.
        most: The most samples that are read.
        seed: Seed of the draw, and of what reading a sample draws.
        columns: The only columns that are of interest, where the data set can leave others out.
    """

    def __init__(self, dataset: Any, most: int, seed: int = 0, columns: Sequence[str] = ()):
        self.broken: list[Broken] = []  # the first of them
        self.num_broken = 0
        self.size: int | None = None if is_iterable(dataset) else len(dataset)
        self.is_whole = self.size is not None and self.size <= most
        self._dataset, self._most, self._seed = _with_columns(dataset, columns), most, seed

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        with seeded(self._seed):  # what reading draws must not show in anything else
            yield from self._rows() if self.size is None else self._indexed(self.size)

    def _indexed(self, size: int) -> Iterator[tuple[int, Any]]:
        indices = chosen_indices(size, self._most, self._seed)
        for start in range(0, len(indices), SAMPLES_AT_ONCE):
            block = indices[start : start + SAMPLES_AT_ONCE]
            try:
                samples = _read(self._dataset, block)
            except Exception:
                yield from self._one_by_one(block)
            else:
                yield from zip(block, samples, strict=True)

    def _one_by_one(self, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for index in indices:
            try:
                sample = self._dataset[index]
            except Exception as error:
                self._note(index, error)
            else:
                yield index, sample

    def _rows(self) -> Iterator[tuple[int, Any]]:
        num_read = 0
        try:
            for row in self._dataset:
                if num_read == self._most:
                    return
                yield num_read, row
                num_read += 1
        except Exception as error:
            self._note(num_read, error)
        else:
            self.is_whole, self.size = True, num_read

    def _note(self, index: int, error: Exception) -> None:
        self.num_broken += 1
        if len(self.broken) < _MOST_KEPT:
            self.broken.append(Broken(index, shortened(f"{type(error).__name__}: {error}", 300)))


def readable(stream: Stream) -> Any:
    """Gives what the samples of a stream are read from.

    Args:
        stream: The stream.

    Returns:
        Its data set, with what makes samples of its own; nothing for a memory, which has none before the run.
    """
    return [] if stream.is_memory else preprocessed(stream.dataset, stream.preprocess)


def chosen_indices(size: int, most: int, seed: int) -> list[int]:
    """Draws which samples are looked at.

    Args:
        size: How many there are.
        most: How many are looked at, at most.
        seed: Seed of the draw.

    Returns:
        Indices, ascending; all if there are no more.

    Example:
        >>> chosen_indices(3, 5, seed=0)
        [0, 1, 2]
    """
    if size <= most:
        return list(range(size))
    drawn = np.random.default_rng(seed).choice(size, most, replace=False, shuffle=False)
    indices: list[int] = np.sort(drawn).tolist()
    return indices


def _read(dataset: Any, indices: list[int]) -> Sequence[Any]:
    read = getattr(dataset, "__getitems__", None)
    return [dataset[index] for index in indices] if read is None else read(indices)


def _with_columns(dataset: Any, columns: Sequence[str]) -> Any:
    """Leaves columns out that nobody asks for, and reads numbers as arrays, which is several times faster."""
    if not isinstance(dataset, datasets.Dataset) or dataset.format["type"] is not None:
        return dataset
    known = [name for name in columns if name in dataset.column_names]
    return dataset.select_columns(known).with_format("numpy") if "input_ids" in known else dataset
