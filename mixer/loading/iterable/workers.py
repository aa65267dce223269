"""Reads the lanes of an iterable data set in the workers of a DataLoader."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import fsspec.asyn  # type: ignore[import-untyped]
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from mixer.distributed.signals import begin_worker
from mixer.loading.iterable.shards import Chunk, LanePoint, LaneReader
from mixer.loading.transport import Packed, pack
from mixer.loading.workers import Patience, keep_errors_out_of_training


@dataclass(frozen=True)
class _Start:
    """Where the workers begin: the first one reads the first lane in turn."""

    pass_number: int
    points: Sequence[LanePoint]
    next_lane: int
    chunk_size: int


class _Lanes(IterableDataset[Chunk]):
    """What runs in the workers; each reads one lane."""

    def __init__(self, reader: LaneReader, start: _Start):
        self._reader, self._start = reader, start
        self._worker = 0
        self.pass_number = torch.tensor(start.pass_number)
        self.pass_number.share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Chunk]:
        info = get_worker_info()
        if info is not None:
            self._worker = info.id
            _hide_worker_info()
        start, number = self._start, int(self.pass_number)
        if number == start.pass_number:
            lane = (start.next_lane + self._worker) % len(start.points)
            point = start.points[lane]
        else:
            lane, point = self._worker, LanePoint()
        for chunk in self._reader.read(lane, number, point, start.chunk_size):
            yield self._pack(chunk, point)
            point = chunk.end

    def _pack(self, chunk: Chunk, before: LanePoint) -> Chunk:
        failure = chunk.failure
        if chunk.cause is not None:
            failure = f"{failure}\n\nIn worker {self._worker}:\n{''.join(traceback.format_exception(chunk.cause))}"
        try:
            rows = pack(chunk.rows) if chunk.rows else Packed(None)
        except Exception as error:  # a row that cannot be sent to another process
            place = f"Stream {self._reader.name!r}: rows {before.row} to {chunk.end.row - 1} of lane"
            place += f" {self._reader.first_lane + chunk.lane} could not be handed over by worker {self._worker}"
            message = f"{place}: {type(error).__name__}: {error}"
            return Chunk(chunk.lane, Packed(None), 0, before, message)
        return replace(chunk, rows=rows, failure=failure, cause=None)


class LaneWorkers:
    """Workers that read the lanes of one rank, a lane each.

    Args:
        reader: Reads a lane.
        num_workers: Number of processes, and of lanes.
        prefetch_factor: Number of chunks that each of them reads ahead.
        worker_init_fn: What a worker does first, as in a DataLoader.
        seed: Seed of the workers' own generators.
        multiprocessing_context: How they are started, as in a DataLoader.
        limit_seconds: How long rows are waited for; `None` waits for ever.
    """

    def __init__(
        self,
        reader: LaneReader,
        num_workers: int,
        prefetch_factor: int,
        worker_init_fn: Callable[[int], None] | None,
        seed: int,
        multiprocessing_context: Any = None,
        limit_seconds: float | None = None,
    ):
        self._reader, self._patience = reader, Patience(limit_seconds)
        self._options: dict[str, Any] = {
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor,
            "worker_init_fn": partial(begin_worker, worker_init_fn),
            "multiprocessing_context": multiprocessing_context,
            "generator": torch.Generator().manual_seed(seed % 2**63),
        }
        self._lanes: _Lanes | None = None
        self._loader: DataLoader[Chunk] | None = None
        self._results: Any = None

    def start(self, pass_number: int, points: Sequence[LanePoint], next_lane: int, chunk_size: int) -> Iterator[Chunk]:
        """Has the workers read on; those that live go over to a new pass.

        Args:
            pass_number: Number of the pass.
            points: Where each lane begins.
            next_lane: The lane whose turn it is.
            chunk_size: A chunk ends where a multiple of so many rows is reached.

        Yields:
            The chunks: one of each lane in turn, without those that have ended.
        """
        start = _Start(pass_number, tuple(points), next_lane, chunk_size)
        if self._lanes is None or set(points) != {LanePoint()} or next_lane:
            self.stop()
            self._lanes = _Lanes(self._reader, start)
            self._loader = DataLoader(
                self._lanes, batch_size=None, collate_fn=_as_it_is, persistent_workers=True, **self._options
            )
        self._lanes.pass_number.fill_(pass_number)
        self._results = iter(self._loader)  # type: ignore[arg-type]
        keep_errors_out_of_training()
        results = self._results
        self._patience.watch(results)
        while True:
            self._patience.begin()
            chunk = next(results, None)
            if chunk is None:
                return
            samples = chunk.rows.unpack()
            yield replace(chunk, rows=[samples[number] for number in range(chunk.num_rows)])

    def stop(self) -> None:
        """Ends the workers."""
        # An error that is still looked at holds the iterator, and with it the workers, alive.
        getattr(self._results, "_shutdown_workers", lambda: None)()
        self._results = self._loader = self._lanes = None


def _hide_worker_info() -> None:
    """Lets data sets see no worker: they would share their rows out among the workers a second time."""
    fsspec.asyn.reset_lock()  # it may have been held when it was copied; Hugging Face data sets do so in workers
    torch_worker._worker_info = None
    if get_worker_info() is not None:
        raise RuntimeError("This version of torch does not let data sets be read as if there were no workers.")


def _as_it_is(chunk: Any) -> Any:
    return chunk
