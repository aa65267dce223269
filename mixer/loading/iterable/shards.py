"""Shards of an iterable dataset: each reader reads one in chunks, with the state to resume from."""

import contextlib
import copy
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import datasets
from datasets.distributed import split_dataset_by_node

from mixer.loading.iterable.one_thread import calls_functions_in_threads, in_one_thread, nodes_of, reads_sources
from mixer.loading.preprocessing import is_stateful
from mixer.mixture.bad_samples import BrokenSample
from mixer.utils.random_state import RandomState, seed_generators

# A buffer of one row shuffles source files only; before datasets 5.2 it still held one row back.
_GIVES_BUFFER_OF_ONE = tuple(map(int, datasets.__version__.split(".")[:2])) >= (5, 2)


@dataclass(frozen=True)
class ShardPosition:
    """A position in a shard.

    Args:
        row: Rows before it.
        state: The dataset's state as JSON from which it can be reached; `None` means the start of the pass.
        state_row: Rows before that state.
        has_ended: Whether the shard has ended.
    """

    row: int = 0
    state: str | None = None
    state_row: int = 0
    has_ended: bool = False


@dataclass
class Chunk:
    """Consecutive rows of one shard.

    Args:
        shard: Shard number within the rank.
        rows: Rows, possibly packed for transport.
        num_rows: Number of rows.
        end: Position after the rows.
        failure: Error message for the next row.
        cause: Its exception, within one process.
        problem: Why the dataset's state cannot be saved, if it has one.
    """

    shard: int
    rows: Any
    num_rows: int
    end: ShardPosition
    failure: str | None = None
    cause: Exception | None = None
    problem: str | None = None


@dataclass
class ShardReader:
    """Reads shards of an iterable dataset.

    Hugging Face datasets are sharded by `split_dataset_by_node`. For any other, row i belongs to shard i mod
    `num_shards`: each reader reads all rows, with the same random numbers, and keeps its own.

    Args:
        name: Stream name.
        dataset: Dataset.
        key: Random key of the stream.
        rank: This rank.
        world_size: Number of ranks.
        shards_per_rank: Shards that each rank reads.
        skips: Whether to replace rows that are `None` or that `preprocess` fails on by a `BrokenSample`. Errors of the
            dataset itself are always raised: a generator that has raised yields no more rows.
        preprocess: Converts a row to a sample; `None` if the dataset does.
    """

    name: str
    dataset: Any
    key: int
    rank: int
    world_size: int
    shards_per_rank: int
    skips: bool = False
    preprocess: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        self.first_shard = self.rank * self.shards_per_rank
        self._num_shards = self.world_size * self.shards_per_rank
        self._beginning: Any = None
        self._is_under_way = False

    def read(self, shard: int, pass_number: int, start: ShardPosition, chunk_size: int) -> Iterator[Chunk]:
        """Reads a shard.

        Args:
            shard: Shard number within the rank.
            pass_number: Number of the pass.
            start: Start position.
            chunk_size: Chunks end at multiples of this row number.

        Yields:
            Chunks; the last one has ended or failed.
        """
        end, row, source = start, start.state_row, None
        while not end.has_ended:
            rows: list[Any] = []
            failure: Exception | None = None
            has_ended = False
            try:
                source = source or self._open(shard, pass_number, start, chunk_size)
                stop = row - row % chunk_size + chunk_size
                while row < stop:
                    value = self._made(source.read(row), shard, row)
                    rows += [value] if row >= start.row else []
                    row += 1
            except StopIteration:
                has_ended, self._is_under_way = True, False
            except Exception as error:  # any error of a user's dataset is passed on with its row
                failure = error
            chunk = Chunk(shard, rows, len(rows), ShardPosition(max(row, start.row), has_ended=has_ended))
            if failure is not None:
                chunk.failure, chunk.cause = self._describe(shard, row, failure), failure
                chunk.end = replace(chunk.end, state=end.state, state_row=end.state_row)
            elif source is not None and not has_ended:
                state, chunk.problem = _state_of(source)
                chunk.end = replace(chunk.end, state=state, state_row=0 if state is None else row)
            if rows or failure is not None or has_ended:
                yield chunk
            if failure is not None:
                return
            end = chunk.end

    def _made(self, row: Any, shard: int, number: int) -> Any:
        try:
            sample = row if self.preprocess is None or row is None else self.preprocess(row)
            if sample is None:
                raise ValueError("it is None")
        except Exception as error:
            if not self.skips:
                raise
            return BrokenSample(self._describe(shard, number, error))
        return sample

    def _describe(self, shard: int, row: int, error: Exception) -> str:
        place = f"Stream {self.name!r}: row {row} of shard {self.first_shard + shard}"
        return f"{place} could not be read: {type(error).__name__}: {error}"

    def _open(self, shard: int, pass_number: int, start: ShardPosition, chunk_size: int) -> "_ShardRows":
        state = None if start.state is None else json.loads(start.state)
        if isinstance(self.dataset, datasets.IterableDataset):
            part = self._split(shard)
            part.set_epoch(pass_number)
            if state is not None:
                part.load_state_dict(state)
            return _HuggingFaceRows(part, (self.key, pass_number, self.first_shard + shard), chunk_size)
        has_state = is_stateful(self.dataset)
        if has_state and self._beginning is None:
            self._beginning = copy.deepcopy(self.dataset.state_dict())
        elif has_state and self._is_under_way and state is None:  # restart it
            self.dataset.load_state_dict(copy.deepcopy(self._beginning))
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(pass_number)
        if state is not None:
            self.dataset.load_state_dict(state)
        self._is_under_way = True
        place = (self.first_shard + shard, self._num_shards)
        return _EveryNthRow(self.dataset, (self.key, pass_number), place, start.state_row)

    def _split(self, shard: int) -> Any:
        if self.dataset._distributed is None:  # noqa: SLF001  # no public equivalent
            return split_dataset_by_node(self.dataset, self.first_shard + shard, self._num_shards)
        return split_dataset_by_node(self.dataset, shard, self.shards_per_rank)  # the user has sharded it over ranks


class _HuggingFaceRows:
    """Rows of one shard of a Hugging Face dataset."""

    def __init__(self, part: Any, key: tuple[int, int, int], chunk_size: int):
        self._part, self._rows = part, iter(part)
        # Shards that all read the same rows and keep their own must draw the same random numbers for them.
        self._key = key if _is_split_by_files(part) else (*key[:2], -1)
        # Rows computed together have no random numbers of their own: seed whole chunks.
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
            raise ValueError("random numbers are drawn for several rows at once")
        return self._part.state_dict()


class _EveryNthRow:
    """Every n-th row of a dataset."""

    def __init__(self, dataset: Any, key: tuple[int, int], place: tuple[int, int], row: int):
        self._dataset, self._key = dataset, key
        self._shard, self._num_shards = place
        self._next = (row - 1) * self._num_shards + self._shard + 1 if row else 0
        seed_generators(*key)
        self._rows = iter(dataset)

    def read(self, row: int) -> Any:
        value = None
        while self._next <= row * self._num_shards + self._shard:
            seed_generators(*self._key, self._next)
            value = next(self._rows)
            self._next += 1
        return value

    def state_dict(self) -> Any:
        return self._dataset.state_dict() if is_stateful(self._dataset) else None


_ShardRows = _HuggingFaceRows | _EveryNthRow


def has_shuffle_buffer(dataset: Any) -> bool:
    """Whether a Hugging Face dataset holds rows back in a shuffle buffer, which its state does not contain."""
    buffers = [node for node in nodes_of(dataset) if type(node).__name__ == "BufferShuffledExamplesIterable"]
    return any(node.buffer_size > 1 or not _GIVES_BUFFER_OF_ONE for node in buffers)


def shuffled_order(dataset: Any) -> str | None:
    """Returns what decides the order of a shuffled Hugging Face dataset, hashed; `None` for one that is not shuffled.

    Without a seed it differs in each process.
    """
    shuffled = [node for node in nodes_of(dataset) if type(node).__name__ == "BufferShuffledExamplesIterable"]
    generators = [part.generator for part in (*shuffled, getattr(dataset, "_shuffling", None)) if part is not None]
    if not generators:
        return None
    # How a buffer is drawn from may change with the version.
    drawn = [
        datasets.__version__ if has_shuffle_buffer(dataset) else "",
        [own.bit_generator.state for own in generators],
    ]
    text = json.dumps(drawn, default=lambda values: values.tolist())
    return f"{zlib.crc32(text.encode()):08x}"


def reads_ahead(dataset: Any) -> bool:
    """Whether a Hugging Face dataset can compute several rows together: it maps batches or reads several sources."""
    return any(getattr(node, "batched", False) or reads_sources(node) for node in nodes_of(dataset))


def _is_split_by_files(part: Any) -> bool:
    split, source = part._distributed, part._ex_iterable  # noqa: SLF001  # no public equivalent
    strategy = getattr(split, "strategy", "auto")
    return strategy == "shards" or (strategy == "auto" and source.num_shards % split.world_size == 0)


def _state_of(source: _ShardRows) -> tuple[str | None, str | None]:
    """Returns the state as JSON, or the reason why it is unusable."""
    try:
        state = source.state_dict()
        text = None if state is None else json.dumps(state)
        if text is not None and json.loads(text) != state:
            raise ValueError("it changes when it is written to JSON and read back")
    except Exception as error:  # a user's dataset is then used without its state
        return None, f"{type(error).__name__}: {error}"
    return text, None
