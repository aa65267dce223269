"""The lanes of an iterable data set: who reads which of its rows, in chunks, with the state to go on from."""

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import datasets
from datasets.distributed import split_dataset_by_node

from mixer.loading.iterable.one_thread import calls_functions_in_threads, in_one_thread, nodes_of, reads_sources
from mixer.mixture.bad_samples import BrokenSample
from mixer.utils.random_state import RandomState, seed_generators

# A buffer of one row only shuffles shards; before datasets 5.2 it held a row back all the same.
_GIVES_BUFFER_OF_ONE = tuple(map(int, datasets.__version__.split(".")[:2])) >= (5, 2)


@dataclass(frozen=True)
class LanePoint:
    """A place in a lane.

    Args:
        row: Number of rows before it.
        state: The data set's state, as JSON, from which it can be reached; `None` is the pass's beginning.
        state_row: Number of rows before that state.
        has_ended: Whether no row follows.
    """

    row: int = 0
    state: str | None = None
    state_row: int = 0
    has_ended: bool = False


@dataclass
class Chunk:
    """Rows of one lane that follow each other.

    Args:
        lane: The lane, counted within the rank.
        rows: The rows, or what is sent in their place.
        num_rows: How many.
        end: The place after them.
        failure: What went wrong with the row after them.
        cause: The error behind it, within one process.
        problem: Why the data set's state cannot be saved, where it has one.
    """

    lane: int
    rows: Any
    num_rows: int
    end: LanePoint
    failure: str | None = None
    cause: Exception | None = None
    problem: str | None = None


class _LaneRows(Protocol):
    def read(self, row: int) -> Any:
        """Reads the next row, of which the number is given; a `StopIteration` ends the lane."""

    def state_dict(self) -> Any:
        """Gives the state after the last row, or `None`; raises a `ValueError` that says why it cannot be used."""


class LaneReader:
    """Reads lanes of an iterable data set.

    Lanes of a Hugging Face data set are what `split_dataset_by_node` gives. Of any other, row i belongs to lane i mod
    `num_lanes`: each lane reads all rows, drawing the same random numbers, and keeps its own.

    Args:
        name: Name of the stream.
        dataset: The data set.
        key: The stream's random key.
        rank: This rank.
        world_size: Number of ranks.
        lanes_per_rank: Number of lanes that each of them reads.
        skips: Whether a `BrokenSample` stands for rows that `preprocess` fails on, or that are `None`. What the data
            set itself raises is an error all the same: a generator that has raised gives no more rows.
        preprocess: Makes a sample of a row; `None` where the data set does.
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        key: int,
        rank: int,
        world_size: int,
        lanes_per_rank: int,
        skips: bool = False,
        preprocess: Callable[[Any], Any] | None = None,
    ):
        self.name, self.dataset, self._key = name, dataset, key
        self._skips, self._preprocess = skips, preprocess
        self._per_rank, self._num_lanes = lanes_per_rank, world_size * lanes_per_rank
        self.first_lane = rank * lanes_per_rank
        self._beginning: Any = None
        self._is_under_way = False

    def read(self, lane: int, pass_number: int, start: LanePoint, chunk_size: int) -> Iterator[Chunk]:
        """Reads a lane.

        Args:
            lane: The lane, counted within the rank.
            pass_number: Number of the pass.
            start: Where to begin.
            chunk_size: A chunk ends where a multiple of so many rows is reached.

        Yields:
            Its chunks; after one whose end has ended, or that has failed, there is none.
        """
        end, row, source = start, start.state_row, None
        while not end.has_ended:
            rows: list[Any] = []
            failure: Exception | None = None
            has_ended = False
            try:
                source = source or self._open(lane, pass_number, start, chunk_size)
                stop = row - row % chunk_size + chunk_size
                while row < stop:
                    value = self._made(source.read(row), lane, row)
                    rows += [value] if row >= start.row else []
                    row += 1
            except StopIteration:
                has_ended, self._is_under_way = True, False
            except Exception as error:  # whatever a user's data set raises is passed on, with the place
                failure = error
            chunk = Chunk(lane, rows, len(rows), LanePoint(max(row, start.row), has_ended=has_ended))
            if failure is not None:
                chunk.failure, chunk.cause = self._describe(lane, row, failure), failure
                chunk.end = replace(chunk.end, state=end.state, state_row=end.state_row)
            elif source is not None and not has_ended:
                state, chunk.problem = _state_of(source)
                chunk.end = replace(chunk.end, state=state, state_row=0 if state is None else row)
            if rows or failure is not None or has_ended:
                yield chunk
            if failure is not None:
                return
            end = chunk.end

    def _made(self, row: Any, lane: int, number: int) -> Any:
        try:
            sample = row if self._preprocess is None or row is None else self._preprocess(row)
            if sample is None:
                raise ValueError("it is None")
        except Exception as error:
            if not self._skips:
                raise
            return BrokenSample(self._describe(lane, number, error))
        return sample

    def _describe(self, lane: int, row: int, error: Exception) -> str:
        place = f"Stream {self.name!r}: row {row} of lane {self.first_lane + lane}"
        return f"{place} could not be read: {type(error).__name__}: {error}"

    def _open(self, lane: int, pass_number: int, start: LanePoint, chunk_size: int) -> _LaneRows:
        state = None if start.state is None else json.loads(start.state)
        if isinstance(self.dataset, datasets.IterableDataset):
            part = self._split(lane)
            part.set_epoch(pass_number)
            if state is not None:
                part.load_state_dict(state)
            return _HuggingFaceRows(part, (self._key, pass_number, self.first_lane + lane), chunk_size)
        has_state = is_stateful(self.dataset)
        if has_state and self._beginning is None:
            self._beginning = copy.deepcopy(self.dataset.state_dict())
        elif has_state and self._is_under_way and state is None:  # else it would go on where it was left
            self.dataset.load_state_dict(copy.deepcopy(self._beginning))
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(pass_number)
        if state is not None:
            self.dataset.load_state_dict(state)
        self._is_under_way = True
        place = (self.first_lane + lane, self._num_lanes)
        return _EveryNthRow(self.dataset, (self._key, pass_number), place, start.state_row)

    def _split(self, lane: int) -> Any:
        if self.dataset._distributed is None:
            return split_dataset_by_node(self.dataset, self.first_lane + lane, self._num_lanes)
        return split_dataset_by_node(self.dataset, lane, self._per_rank)  # the user has split it by ranks


class _HuggingFaceRows:
    """The rows of one part of a Hugging Face data set."""

    def __init__(self, part: Any, key: tuple[int, int, int], chunk_size: int):
        self._part, self._rows = part, iter(part)
        # Lanes that read the same rows and leave out those of the others must draw the same for them.
        self._key = key if _is_split_by_shards(part) else (*key[:2], -1)
        # Which row a number is drawn for is not known where rows are computed together: chunks are seeded as a whole.
        self._reads_ahead, self._draws = reads_ahead(part), False
        self._chunk_size, self._seeded = chunk_size, RandomState.capture()
        self._threads = in_one_thread if calls_functions_in_threads(part) else contextlib.nullcontext

    def read(self, row: int) -> Any:
        if not self._reads_ahead:
            seed_generators(*self._key, row)
        elif row % self._chunk_size == 0:
            seed_generators(*self._key, row)
            self._seeded = RandomState.capture()
        with self._threads():
            return next(self._rows)

    def state_dict(self) -> Any:
        self._draws = self._draws or (self._reads_ahead and not self._seeded.is_current())
        if self._draws:
            raise ValueError("it draws random numbers for several rows at once")
        return self._part.state_dict()


class _EveryNthRow:
    """Every n-th row of a data set."""

    def __init__(self, dataset: Any, key: tuple[int, int], place: tuple[int, int], row: int):
        self._dataset, self._key = dataset, key
        self._lane, self._num_lanes = place
        self._number = self._number_of(row - 1) + 1 if row else 0
        seed_generators(*key)
        self._rows = iter(dataset)

    def read(self, row: int) -> Any:
        value = None
        for number in range(self._number, self._number_of(row) + 1):
            seed_generators(*self._key, number)
            value = next(self._rows)
        self._number = self._number_of(row) + 1
        return value

    def state_dict(self) -> Any:
        return self._dataset.state_dict() if is_stateful(self._dataset) else None

    def _number_of(self, row: int) -> int:
        return row * self._num_lanes + self._lane


def is_stateful(dataset: Any) -> bool:
    """Says whether a data set can give its state and go on from one.

    Args:
        dataset: The data set.

    Returns:
        Whether it has both methods.
    """
    return callable(getattr(dataset, "state_dict", None)) and callable(getattr(dataset, "load_state_dict", None))


def has_shuffle_buffer(dataset: Any) -> bool:
    """Says whether a data set holds rows back that its state does not have.

    Args:
        dataset: The data set.

    Returns:
        Whether a Hugging Face data set was shuffled with a buffer.
    """
    buffers = [node for node in nodes_of(dataset) if type(node).__name__ == "BufferShuffledExamplesIterable"]
    return any(node.buffer_size > 1 or not _GIVES_BUFFER_OF_ONE for node in buffers)


def reads_ahead(dataset: Any) -> bool:
    """Says whether one row of a data set may be computed together with later ones.

    Args:
        dataset: The data set.

    Returns:
        Whether a Hugging Face data set maps batches or reads several sources.
    """
    return any(getattr(node, "batched", False) or reads_sources(node) for node in nodes_of(dataset))


def _is_split_by_shards(part: Any) -> bool:
    split = part._distributed
    strategy = getattr(split, "strategy", "auto")
    return strategy == "shards" or (strategy == "auto" and part._ex_iterable.num_shards % split.world_size == 0)


def _state_of(source: _LaneRows) -> tuple[str | None, str | None]:
    """Gives the state as JSON, or why there is none."""
    try:
        state = source.state_dict()
        text = None if state is None else json.dumps(state)
        if text is not None and json.loads(text) != state:
            raise ValueError("it is not the same when it is read back from JSON")
    except Exception as error:  # a user's data set is used without its state then
        return None, f"{type(error).__name__}: {error}"
    return text, None
