"""Reads the shards of an iterable dataset in DataLoader workers."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import fsspec.asyn  # type: ignore[import-untyped]
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from mixer.loading.iterable.shards import Chunk, ShardPosition, ShardReader
from mixer.loading.transport import Packed, pack
from mixer.loading.workers import WorkerOptions, WorkerResults


class _ShardDataset(IterableDataset[Chunk]):
    """The dataset that runs in the workers; each reads one shard, the first one that whose turn is next."""

    def __init__(
        self, reader: ShardReader, pass_number: int, points: Sequence[ShardPosition], next_shard: int, size: int
    ):
        self._reader, self._points, self._next_shard, self._chunk_size = reader, points, next_shard, size
        self._first_pass, self._worker = pass_number, 0
        self.pass_number = torch.tensor(pass_number)
        self.pass_number.share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Chunk]:
        info = get_worker_info()
        if info is not None:
            self._worker = info.id
            _hide_worker_info()
        number, shard, point = int(self.pass_number), self._worker, ShardPosition()
        if number == self._first_pass:
            shard = (self._next_shard + shard) % len(self._points)
            point = self._points[shard]
        for chunk in self._reader.read(shard, number, point, self._chunk_size):
            yield self._pack(chunk, point)
            point = chunk.end

    def _pack(self, chunk: Chunk, before: ShardPosition) -> Chunk:
        failure = chunk.failure
        if chunk.cause is not None:
            failure = f"{failure}\n\nIn worker {self._worker}:\n{''.join(traceback.format_exception(chunk.cause))}"
        try:
            rows = pack(chunk.rows) if chunk.rows else Packed(None)
        except Exception as error:  # a row that cannot be sent to another process
            rows_range = f"rows {before.row} to {chunk.end.row - 1} of shard {self._reader.first_shard + chunk.shard}"
            message = (
                f"Stream {self._reader.name!r}: worker {self._worker} could not send {rows_range}: "
                f"{type(error).__name__}: {error}"
            )
            return Chunk(chunk.shard, Packed(None), 0, before, message)
        return replace(chunk, rows=rows, failure=failure, cause=None)


class ShardWorkers:
    """Workers that read one rank's shards, one shard each.

    Args:
        reader: Reads a shard.
        options: Worker options; one shard per worker.
        seed: Seed of the workers' own generators.
    """

    def __init__(self, reader: ShardReader, options: WorkerOptions, seed: int):
        self._reader, self._answers = reader, WorkerResults(options.limit_seconds)
        self._options = options.data_loader_arguments(seed)
        self._shards: _ShardDataset | None = None
        self._loader: DataLoader[Chunk] | None = None

    @property
    def results(self) -> Any:
        """The DataLoader's iterator; `None` while no workers run."""
        return self._answers.results

    def start(
        self, pass_number: int, points: Sequence[ShardPosition], next_shard: int, chunk_size: int
    ) -> Iterator[Chunk]:
        """Starts reading; live workers continue with the new pass.

        Args:
            pass_number: Number of the pass.
            points: Start position of each shard.
            next_shard: Shard whose turn is next.
            chunk_size: Chunks end at multiples of this row number.

        Yields:
            Chunks of the shards in turn, skipping shards that have ended.
        """
        if self._shards is None or set(points) != {ShardPosition()} or next_shard:
            self.stop()
            self._shards = _ShardDataset(self._reader, pass_number, tuple(points), next_shard, chunk_size)
            self._loader = DataLoader(self._shards, persistent_workers=True, **self._options)
        self._shards.pass_number.fill_(pass_number)
        self._answers.start(self._loader)  # type: ignore[arg-type]
        while (chunk := next(self._answers, None)) is not None:
            samples = chunk.rows.unpack()
            yield replace(chunk, rows=[samples[number] for number in range(chunk.num_rows)])

    def stop(self) -> None:
        """Stops the workers."""
        self._answers.stop()
        self._loader = self._shards = None


def _hide_worker_info() -> None:
    """Hides the workers from datasets, which would otherwise shard their rows over them a second time."""
    fsspec.asyn.reset_lock()  # it may have been held at the fork; Hugging Face datasets reset it in workers, too
    torch_worker._worker_info = None  # noqa: SLF001  # no public equivalent
    if get_worker_info() is not None:
        raise RuntimeError("This version of torch does not allow hiding the worker info from datasets.")
