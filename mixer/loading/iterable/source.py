"""One rank's rows of an iterable dataset: prefetched, optionally by workers, with exact resume."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import datasets
from transformers.utils import logging

from mixer.loading.iterable.shard_workers import ShardWorkers
from mixer.loading.iterable.shards import Chunk, ShardPosition, ShardReader, has_shuffle_buffer, shuffled_order
from mixer.loading.preprocessing import is_stateful
from mixer.loading.reader import SampleError
from mixer.loading.workers import WorkerOptions, WorkerTimeoutError, likely_cause
from mixer.mixture.bad_samples import first_whole
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import RandomState

logger = logging.get_logger(__name__)
_IN_PROCESS = WorkerOptions()
_WITHOUT_BUFFER = (
    " That fills its shuffle buffer as before. Without a buffer it would go on at once: shuffle shards alone, "
    "dataset.reshard().shuffle(seed=..., buffer_size=1), or give a map-style dataset, which is shuffled whole."
)


class RowSource:
    """Reads one rank's rows of an iterable dataset, pass after pass.

    The dataset is sharded over all ranks and their workers; see `ShardReader`. A rank reads its shards in turn, a chunk
    at a time, until each has ended: in the same order in every run. Random numbers drawn while a row is read come from
    generators seeded for that row.

    Args:
        name: Stream name.
        dataset: Hugging Face or torch `IterableDataset`, or any object whose `__iter__` restarts each time.
        key: Random key of the stream.
        rank: This rank.
        world_size: Number of ranks.
        workers: Worker options; each worker prefetches `prefetch_factor` chunks.
        chunk_size: Rows per read.
        skips: See `ShardReader`.
        preprocess: See `ShardReader`.
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        key: int,
        rank: int = 0,
        world_size: int = 1,
        workers: WorkerOptions = _IN_PROCESS,
        chunk_size: int = 16,
        skips: bool = False,
        preprocess: Callable[[Any], Any] | None = None,
    ):
        self.pass_number, self.num_taken = 0, 0
        self._name, self._rank, self._world_size, self._chunk_size = name, rank, world_size, chunk_size
        self._num_shards = max(1, workers.num_workers)
        self._reader = ShardReader(name, dataset, key, rank, world_size, self._num_shards, skips, preprocess)
        self._workers = ShardWorkers(self._reader, workers, key) if workers.num_workers else None
        self._has_buffer, self._is_inexact = has_shuffle_buffer(dataset), False
        self._order = shuffled_order(dataset)
        self._last_row: Any = None
        self._has_warned = False
        if rank == 0:
            _offer_more_shards(name, dataset, world_size * self._num_shards)
        self._begin([ShardPosition()] * self._num_shards, 0)

    def _begin(self, points: Sequence[ShardPosition], next_shard: int) -> None:
        # Positions after the last row taken, with the state of the oldest chunk not fully taken, and the last row read.
        self._taken, self._received = list(points), list(points)
        self._queue: deque[Chunk] = deque()
        self.num_ready = self._num_used = 0  # rows left in the queue; rows taken from its first chunk
        self._next_shard = next_shard
        self._chunks: Iterator[Chunk] | None = None
        self._failure: Chunk | None = None

    @property
    def remaining(self) -> int | None:
        """Rows of this pass left for this rank; `None` until its end is known."""
        return None if self._is_open else self.num_ready

    def fill(self, num_rows: int) -> None:
        """Reads ahead until `num_rows` rows are ready or the pass ends.

        Raises:
            SampleError: If a required row cannot be read, or a worker died.
        """
        if self.num_ready >= num_rows or not self._is_open:
            return
        state = RandomState.capture()
        try:
            while self._is_open and self.num_ready < num_rows:
                self._receive()
        finally:
            state.restore()

    def peek(self) -> Any:
        """Returns an unbroken row without consuming it: the next one if ready, else the last one taken, else `None`."""
        ready = first_whole(self._queue[0].rows[self._num_used :]) if self._queue else None
        return self._last_row if ready is None else ready

    def take(self, num_rows: int) -> list[Any]:
        """Takes the next `num_rows` rows, at most as many as are ready."""
        assert num_rows <= self.num_ready, "rows are filled before they are taken"  # noqa: S101
        rows: list[Any] = []
        while len(rows) < num_rows:
            chunk = self._queue[0]
            part = chunk.rows[self._num_used : self._num_used + num_rows - len(rows)]
            rows += part
            self._num_used += len(part)
            taken = self._taken[chunk.shard]
            self._taken[chunk.shard] = replace(taken, row=taken.row + len(part))
            self._drop_taken()
        self.num_ready -= num_rows
        self.num_taken += num_rows
        last = first_whole(reversed(rows))
        self._last_row = self._last_row if last is None else last
        return rows

    def end_pass(self) -> None:
        """Ends this pass, without its remaining rows, and starts the next one."""
        self.pass_number += 1
        self.num_taken, self._is_inexact = 0, False
        self._begin([ShardPosition()] * self._num_shards, 0)

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's position as plain data."""
        return {
            "pass_number": self.pass_number,
            "num_taken": self.num_taken,
            "rank": self._rank,
            "world_size": self._world_size,
            "num_lanes": self._num_shards,
            "chunk_size": self._chunk_size,
            "next_lane": self._queue[0].shard if self._queue else self._next_shard,
            "lanes": [_as_data(point) for point in self._taken],
            "order": self._order,
        }

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], allow_inexact: bool = False) -> None:
        """Restores the ranks' positions.

        Args:
            states: States of all saving ranks, in order.
            allow_inexact: Whether to resume approximately if the exact next rows cannot be recovered.

        Raises:
            ValueError: If the next rows cannot be recovered.
        """
        is_same = self._is_same_sharing(states)
        num_rows = sum(int(state["num_taken"]) for state in states) // (self._world_size * self._num_shards)
        problem, consequence = "", ""
        if not is_same:
            saved = f"{states[0]['world_size']} ranks with {states[0]['num_lanes']} readers each"
            now = f"{self._world_size} with {self._num_shards}"
            problem = f"its rows were distributed over {saved} when it was saved, and now over {now}"
            consequence = f"Each skips {num_rows} rows."
        elif states[0].get("order") != self._order and any(
            shard["row"] for state in states for shard in state["lanes"]
        ):
            problem = (
                "its rows are shuffled in another order than when it was saved: by another seed, or none (give "
                "dataset.shuffle the same seed in every process), or a shuffle buffer of another version of datasets"
            )
            consequence = "Rows are repeated or lost."
        if problem and not allow_inexact:
            text = f"Stream {self._name!r}: {problem}. To resume approximately, set allow_inexact=True."
            raise InvalidValueError(text, option="allow_inexact", stream=self._name)
        if problem:
            logger.warning("Stream %r: %s. %s", self._name, problem, consequence)
        self.stop()
        own = states[self._rank if is_same else 0]
        self._is_inexact = bool(problem)
        self.pass_number, self._chunk_size = int(own["pass_number"]), int(own["chunk_size"])
        if is_same:
            self.num_taken = int(own["num_taken"])
            self._begin([_as_point(shard) for shard in own["lanes"]], int(own["next_lane"]))
        else:
            self.num_taken = num_rows * self._num_shards
            self._begin([ShardPosition(num_rows)] * self._num_shards, 0)

    def stop(self) -> None:
        """Stops the workers; reading continues after the rows that are ready."""
        if self._workers is not None:
            self._workers.stop()
        if self._workers is not None or self._failure is not None:
            self._chunks, self._failure = None, None

    @property
    def _is_open(self) -> bool:
        return not all(point.has_ended for point in self._received)

    def _receive(self) -> None:
        if self._failure is not None:
            raise SampleError(self._failure.failure) from self._failure.cause
        if self._chunks is None:
            self._chunks = self._start()
        try:
            chunk = next(self._chunks)
        except Exception as error:
            self._failure = self._worker_failure(error)  # workers are stopped later: a stuck one would delay the error
            raise SampleError(self._failure.failure) from error
        if chunk.problem is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Stream %r: the state of its dataset cannot be used (%s). On a resume, the rows already taken in the "
                "pass are read again and skipped.",
                *(self._name, chunk.problem),
            )
        self._failure = chunk if chunk.failure else None
        self._next_shard = chunk.shard if chunk.failure else (chunk.shard + 1) % self._num_shards
        self._received[chunk.shard] = chunk.end
        self._queue.append(chunk)
        self.num_ready += chunk.num_rows
        self._drop_taken()

    def _worker_failure(self, error: Exception) -> Chunk:
        shard = self._next_shard
        place = f"waiting for row {self._received[shard].row} of shard {self._reader.first_shard + shard}"
        fault = "does not answer" if isinstance(error, WorkerTimeoutError) else "failed or died"
        cause = likely_cause(error, None if self._workers is None else self._workers.results)
        text = f"Stream {self._name!r}: a worker process {fault}, {place}: {error}. {cause}"
        return Chunk(shard, [], 0, self._received[shard], text.rstrip(), error)

    def _start(self) -> Iterator[Chunk]:
        points = self._received
        if self._has_buffer and not self._is_inexact:
            points = [ShardPosition(point.row, has_ended=point.has_ended) for point in points]
        replayed = [point.row for point in points if point.state is None and not point.has_ended]
        num_again = sum(replayed)
        is_exact = is_stateful(self._reader.dataset) and not self._has_buffer
        if num_again and (not is_exact or max(replayed) > self._chunk_size):
            logger.warning(
                "Stream %r cannot resume in place: the first %d rows of this pass on rank %d are read and skipped.%s",
                *(self._name, num_again, self._rank, _WITHOUT_BUFFER if self._has_buffer else ""),
            )
        if self._workers is None:
            return self._reader.read(0, self.pass_number, points[0], self._chunk_size)
        return self._workers.start(self.pass_number, points, self._next_shard, self._chunk_size)

    def _drop_taken(self) -> None:
        while self._queue and self._num_used == self._queue[0].num_rows:
            chunk = self._queue.popleft()
            self._taken[chunk.shard] = chunk.end
            self._num_used = 0

    def _is_same_sharing(self, states: Sequence[Mapping[str, Any]]) -> bool:
        saved = {(int(state["world_size"]), int(state["num_lanes"])) for state in states}
        return saved == {(self._world_size, self._num_shards)} and len(states) == self._world_size


def _offer_more_shards(name: str, dataset: Any, num_readers: int) -> None:
    """Warns that each reader reads all rows of a Hugging Face dataset, where it has fewer shards than readers."""
    is_shared_out = getattr(dataset, "_distributed", None) is not None  # by the user
    if not isinstance(dataset, datasets.IterableDataset) or is_shared_out or dataset.num_shards >= num_readers:
        return
    hint = "Divide it before any shuffle, by dataset.reshard() (Parquet: by row groups), or into more files"
    if not hasattr(dataset, "reshard"):
        hint = "Divide it into more files"
    logger.warning(
        "Stream %r has %d shards for %d readers (workers of all ranks): each reads all rows and keeps its own. %s, or "
        "use fewer workers.",
        *(name, dataset.num_shards, num_readers, hint),
    )


def _as_data(point: ShardPosition) -> dict[str, Any]:
    return asdict(point) | {"state": None if point.state is None else json.loads(point.state)}


def _as_point(shard: Mapping[str, Any]) -> ShardPosition:
    state = None if shard["state"] is None else json.dumps(shard["state"])
    return ShardPosition(int(shard["row"]), state, int(shard["state_row"]), bool(shard["has_ended"]))
