"""The rows of one iterable data set for one rank: read ahead, by workers if there are any, and gone on from exactly."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers.utils import logging

from mixer.loading.iterable.shards import Chunk, LanePoint, LaneReader, has_shuffle_buffer, is_stateful
from mixer.loading.iterable.workers import LaneWorkers
from mixer.loading.reader import SampleError
from mixer.loading.workers import WorkerTimeoutError, likely_cause
from mixer.mixture.bad_samples import first_whole
from mixer.utils.random_state import RandomState

logger = logging.get_logger(__name__)


@dataclass
class _Lane:
    """How far a lane is.

    Args:
        taken: After the last row that was taken; its state is that of the oldest chunk not wholly taken.
        received: After the last row that was read.
    """

    taken: LanePoint = field(default_factory=LanePoint)
    received: LanePoint = field(default_factory=LanePoint)


class RowSource:
    """Reads the rows of an iterable data set for one rank, pass after pass.

    The data set is shared out over all ranks and their workers in lanes; see `LaneReader`. A rank's rows come from its
    lanes in turn, a chunk at a time, until each has ended: in the same order in every repetition. Random numbers that
    are drawn while a row is read come from generators seeded for it.

    Args:
        name: Name of the stream.
        dataset: A Hugging Face or torch `IterableDataset`, or anything else with `__iter__` that begins anew each time.
        key: The stream's random key.
        rank: This rank.
        world_size: Number of ranks.
        num_workers: Number of processes that read; 0 reads in this process.
        prefetch_factor: Number of chunks that each of them reads ahead.
        chunk_size: Number of rows that are read in one go.
        worker_init_fn: What a worker does first, as in a DataLoader.
        multiprocessing_context: How they are started, as in a DataLoader.
        skips: See `LaneReader`.
        preprocess: See `LaneReader`.
        limit_seconds: How long rows of workers are waited for; `None` waits for ever.
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        key: int,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        chunk_size: int = 16,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        skips: bool = False,
        preprocess: Callable[[Any], Any] | None = None,
        limit_seconds: float | None = None,
    ):
        self.pass_number, self.num_taken = 0, 0
        self._name, self._rank, self._world_size, self._chunk_size = name, rank, world_size, chunk_size
        self._num_lanes = max(1, num_workers)
        self._reader = LaneReader(name, dataset, key, rank, world_size, self._num_lanes, skips, preprocess)
        self._workers: LaneWorkers | None = None
        if num_workers:
            self._workers = LaneWorkers(
                self._reader,
                num_workers,
                prefetch_factor,
                worker_init_fn,
                key,
                multiprocessing_context,
                limit_seconds,
            )
        self._has_buffer, self._is_inexact = has_shuffle_buffer(dataset), False
        self._last_row: Any = None
        self._has_warned = False
        self._queue: deque[Chunk] = deque()
        self._num_ready = self._num_used = 0  # rows in the queue that are left; rows of its first chunk that are taken
        self._chunks: Iterator[Chunk] | None = None
        self._failure: Chunk | None = None
        self._begin([LanePoint()] * self._num_lanes, 0)

    @property
    def remaining(self) -> int | None:
        """Number of rows of this pass that are left for this rank, `None` until its end is in sight."""
        return None if self._is_open else self._num_ready

    @property
    def num_ready(self) -> int:
        """Number of rows that can be taken now."""
        return self._num_ready

    def fill(self, num_rows: int) -> None:
        """Reads ahead.

        Args:
            num_rows: Number of rows that are ready afterwards, unless the pass ends before.

        Raises:
            SampleError: If a row that is needed cannot be read, or a worker died.
        """
        self._read_until(lambda: self._num_ready >= num_rows)

    def peek(self) -> Any:
        """Gives a row without taking it: the next one if it is ready, else the last one that was taken.

        Returns:
            The row, or `None` if there is none; none that is broken.
        """
        ready = first_whole(self._queue[0].rows[self._num_used :]) if self._queue else None
        return self._last_row if ready is None else ready

    def take(self, num_rows: int) -> list[Any]:
        """Takes the next rows.

        Args:
            num_rows: How many, at most as many as are ready.

        Returns:
            The rows.
        """
        assert num_rows <= self._num_ready, "rows are filled before they are taken"  # noqa: S101
        rows: list[Any] = []
        while len(rows) < num_rows:
            chunk, lane = self._queue[0], self._lanes[self._queue[0].lane]
            part = chunk.rows[self._num_used : self._num_used + num_rows - len(rows)]
            rows += part
            self._num_used += len(part)
            lane.taken = replace(lane.taken, row=lane.taken.row + len(part))
            self._drop_taken()
        self._num_ready -= num_rows
        self.num_taken += num_rows
        last = first_whole(reversed(rows))
        self._last_row = self._last_row if last is None else last
        return rows

    def end_pass(self, most: int = 10_000) -> int:
        """Ends this pass and begins the next one.

        Args:
            most: Up to so many rows beyond those that are ready are read to be counted.

        Returns:
            Number of rows of this pass that this rank has not delivered, as far as it was counted.
        """
        num_left, num_read = self._num_ready, 0
        try:
            while self._is_open and num_read < most:
                self.take(self._num_ready)
                self._read_until(lambda: self._num_ready > 0)
                num_read += self._num_ready
        except SampleError as error:
            logger.warning("Stream %r: the rows left over at the pass's end are not all counted: %s", self._name, error)
            self.stop()
        self.pass_number += 1
        self.num_taken = 0
        self._is_inexact = False
        self._begin([LanePoint()] * self._num_lanes, 0)
        return num_left + min(num_read, most)

    def state_dict(self) -> dict[str, Any]:
        """Gives where this rank is.

        Returns:
            Plain data.
        """
        return {
            "pass_number": self.pass_number,
            "num_taken": self.num_taken,
            "rank": self._rank,
            "world_size": self._world_size,
            "num_lanes": self._num_lanes,
            "chunk_size": self._chunk_size,
            "next_lane": self._queue[0].lane if self._queue else self._next_lane,
            "lanes": [_as_data(lane.taken) for lane in self._lanes],
        }

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], allow_inexact: bool = False) -> None:
        """Takes up where the ranks were.

        Args:
            states: What all ranks that saved gave, in order.
            allow_inexact: Goes on as near as can be where the very next rows cannot be had.

        Raises:
            ValueError: If the very next rows cannot be had.
        """
        problems = self._find_problems(states)
        if problems and not allow_inexact:
            what = "; ".join(problem for problem, _ in problems)
            raise ValueError(f"Stream {self._name!r}: {what}. To go on all the same, set allow_inexact=True.")
        for problem, consequence in problems:
            logger.warning("Stream %r: %s. %s", self._name, problem, consequence)
        self.stop()
        own = states[self._rank if self._is_same_sharing(states) else 0]
        self._is_inexact = bool(problems)
        self.pass_number, self._chunk_size = int(own["pass_number"]), int(own["chunk_size"])
        if self._is_same_sharing(states):
            self.num_taken = int(own["num_taken"])
            self._begin([_as_point(lane) for lane in own["lanes"]], int(own["next_lane"]))
        else:
            num_rows = _num_taken(states) // (self._world_size * self._num_lanes)
            self.num_taken = num_rows * self._num_lanes
            self._begin([LanePoint(num_rows)] * self._num_lanes, 0)

    def stop(self) -> None:
        """Ends the workers; the next rows that are read are those after the rows that are ready."""
        if self._workers is not None:
            self._workers.stop()
        if self._workers is not None or self._failure is not None:
            self._chunks, self._failure = None, None

    @property
    def _is_open(self) -> bool:
        return not all(lane.received.has_ended for lane in self._lanes)

    def _begin(self, points: Sequence[LanePoint], next_lane: int) -> None:
        self._lanes = [_Lane(point, point) for point in points]
        self._queue.clear()
        self._num_ready = self._num_used = 0
        self._next_lane = next_lane
        self._chunks = self._failure = None

    def _read_until(self, is_enough: Callable[[], bool]) -> None:
        if is_enough() or not self._is_open:
            return
        state = RandomState.capture() if self._workers is None else None
        try:
            while self._is_open and not is_enough():
                self._receive()
        finally:
            if state is not None:
                state.restore()

    def _receive(self) -> None:
        if self._failure is not None:
            raise SampleError(self._failure.failure) from self._failure.cause
        if self._chunks is None:
            self._chunks = self._start()
        try:
            chunk = next(self._chunks)
        except Exception as error:
            self.stop()
            what = "does not answer" if isinstance(error, WorkerTimeoutError) else "failed or died"
            text = f"Stream {self._name!r}: a worker process {what}: {error}. {likely_cause(error)}"
            raise SampleError(text.rstrip()) from error
        self._warn_of(chunk)
        self._failure = chunk if chunk.failure else None
        self._next_lane = chunk.lane if chunk.failure else (chunk.lane + 1) % self._num_lanes
        self._lanes[chunk.lane].received = chunk.end
        self._queue.append(chunk)
        self._num_ready += chunk.num_rows
        self._drop_taken()

    def _start(self) -> Iterator[Chunk]:
        points = [lane.received for lane in self._lanes]
        if self._has_buffer and not self._is_inexact:
            points = [LanePoint(point.row, has_ended=point.has_ended) for point in points]
        replayed = [point.row for point in points if point.state is None and not point.has_ended]
        num_again = sum(replayed)
        is_exact = is_stateful(self._reader.dataset) and not self._has_buffer
        if num_again and (not is_exact or max(replayed) > self._chunk_size):
            logger.warning(
                "Stream %r cannot go on from where it was by itself: the first %d rows of this pass that rank %d had "
                "are read again and passed over.",
                self._name,
                num_again,
                self._rank,
            )
        if self._workers is None:
            return self._reader.read(0, self.pass_number, points[0], self._chunk_size)
        return self._workers.start(self.pass_number, points, self._next_lane, self._chunk_size)

    def _drop_taken(self) -> None:
        while self._queue and self._num_used == self._queue[0].num_rows:
            chunk = self._queue.popleft()
            self._lanes[chunk.lane].taken = chunk.end
            self._num_used = 0

    def _warn_of(self, chunk: Chunk) -> None:
        if chunk.problem is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Stream %r: the state of its data set cannot be used (%s). On a resume, the rows of the pass that were "
                "taken are read again and passed over.",
                self._name,
                chunk.problem,
            )

    def _is_same_sharing(self, states: Sequence[Mapping[str, Any]]) -> bool:
        saved = {(int(state["world_size"]), int(state["num_lanes"])) for state in states}
        return saved == {(self._world_size, self._num_lanes)} and len(states) == self._world_size

    def _find_problems(self, states: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
        if not self._is_same_sharing(states):
            saved = f"{states[0]['world_size']} ranks with {states[0]['num_lanes']} readers each"
            now = f"{self._world_size} with {self._num_lanes}"
            consequence = f"{_num_taken(states) // (self._world_size * self._num_lanes)} rows are passed over by each."
            return [(f"its rows were shared out over {saved} when it was saved, and now over {now}", consequence)]
        if self._has_buffer and any(lane["row"] for state in states for lane in state["lanes"]):
            return [("the shuffle buffer of its data set was not saved", "The rows that were in it are left out.")]
        return []


def _num_taken(states: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(state["num_taken"]) for state in states)


def _as_data(point: LanePoint) -> dict[str, Any]:
    state = None if point.state is None else json.loads(point.state)
    return {"row": point.row, "state": state, "state_row": point.state_row, "has_ended": point.has_ended}


def _as_point(lane: Mapping[str, Any]) -> LanePoint:
    state = None if lane["state"] is None else json.dumps(lane["state"])
    return LanePoint(int(lane["row"]), state, int(lane["state_row"]), bool(lane["has_ended"]))
