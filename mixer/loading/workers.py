"""Worker processes that prefetch samples, in the order of the requests."""

import contextlib
import itertools
import os
import re
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from mixer.distributed.signals import begin_worker
from mixer.loading.collate import Samples
from mixer.loading.reader import SampleError, StreamReader
from mixer.loading.transport import Packed, pack, pack_columns
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.step_plan import StreamShare

_MEMORY = (
    "It was killed from outside (signal 9), usually because memory ran out: use fewer workers "
    "(dataloader_num_workers), a smaller dataloader_prefetch_factor, or a dataset that needs less memory."
)
Share = tuple[StreamShare, ...]
_PIPE_BYTES = 1 << 20
_SECONDS_TO_DIE = 5.0


@dataclass(frozen=True)
class WorkerOptions:
    """How samples are prefetched; names and meanings follow DataLoader.

    Args:
        num_workers: Number of worker processes; 0 loads in the training process.
        prefetch_factor: Micro-batches that each worker prefetches.
        persistent_workers: Whether workers stay alive between epochs.
        worker_init_fn: Called first in each worker.
        multiprocessing_context: Start method; `None` uses Python's default.
        job_size: Maximum samples per job of a worker; `None` uses the micro-batch size.
        limit_seconds: Timeout for workers; `None` waits indefinitely.
    """

    num_workers: int = 0
    prefetch_factor: int = 2
    persistent_workers: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    job_size: int | None = None
    limit_seconds: float | None = None

    def data_loader_arguments(self, seed: int) -> dict[str, Any]:
        """Returns the arguments of a DataLoader that returns results as they are; `seed` seeds the workers."""
        return {
            "batch_size": None,
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            "worker_init_fn": partial(begin_worker, self.worker_init_fn),
            "multiprocessing_context": self.multiprocessing_context,
            "generator": torch.Generator().manual_seed(seed % 2**63),
        }


class WorkerTimeoutError(RuntimeError):
    """A worker did not answer in time."""


class WorkerResults:
    """Results of a DataLoader's workers, with a timeout that does not delay torch's detection of dead workers.

    A DataLoader's own `timeout` would detect a dead worker no sooner than a hanging one.

    Args:
        limit_seconds: Timeout; `None` waits indefinitely.
    """

    def __init__(self, limit_seconds: float | None):
        self._limit_seconds = limit_seconds
        self.results: Any = None

    def start(self, loader: DataLoader[Any]) -> None:
        """Starts the workers; live ones begin anew."""
        self._started = time.monotonic()
        self.results = iter(loader)
        keep_errors_out_of_training()
        poll, limit_seconds = getattr(self.results, "_try_get_data", None), self._limit_seconds
        if poll is None or limit_seconds is None:
            return

        def poll_in_time(seconds: float = poll.__defaults__[0]) -> Any:
            # Not longer than what is left: the other ranks, which wait for this one, have hardly more time.
            left = self._started + limit_seconds - time.monotonic()
            result = poll(min(seconds, max(left, 0.0)))
            if not result[0] and time.monotonic() - self._started >= limit_seconds:
                raise WorkerTimeoutError(f"no answer for {limit_seconds:g} seconds, nine tenths of ddp_timeout")
            return result

        self.results._try_get_data = poll_in_time  # noqa: SLF001  # no public hook

    def __next__(self) -> Any:
        self._started = time.monotonic()
        return next(self.results)

    def stop(self) -> None:
        """Stops the workers."""
        # A live traceback would keep the iterator, and with it the workers, alive.
        getattr(self.results, "_shutdown_workers", lambda: None)()
        # One that is stuck in native code outlives torch's SIGTERM, and Python would wait for it at exit.
        for worker in getattr(self.results, "_workers", ()):
            worker.kill()
            worker.join(_SECONDS_TO_DIE)
        self.results = None


def likely_cause(error: Exception, results: Any) -> str:
    """Explains why a worker may have died or not answered: a sentence, or an empty string.

    Args:
        error: Error raised by torch or by `WorkerResults`.
        results: The DataLoader's iterator, which knows its workers' exit codes.
    """
    if isinstance(error, WorkerTimeoutError):
        return "If reading really takes that long, raise ddp_timeout; else a resource it waits for does not answer."
    codes = {worker.exitcode for worker in getattr(results, "_workers", ())} - {None}
    if -signal.SIGKILL in codes:
        return _MEMORY
    ends = [f"signal {-code}" if code < 0 else f"status {code}" for code in sorted(codes)]
    if not ends:
        return ""
    return f"It ended with {' and '.join(ends)}, in code that a sample runs: dataloader_num_workers=0 shows where."


@dataclass(frozen=True)
class Job:
    """Samples that one worker loads at once.

    Args:
        due: Step that needs them; infinite for an empty job, which only preserves the workers' order.
        share: The samples.
    """

    due: float = float("inf")
    share: Share = ()


@dataclass
class _JobQueue:
    """Job queue; the DataLoader uses it as an endless sampler."""

    in_flight: deque[Job] = field(default_factory=deque)
    waiting: deque[Job] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Share]:
        return self

    def __next__(self) -> Share:
        job = self.waiting.popleft() if self.waiting else Job()
        self.in_flight.append(job)
        return job.share


class _JobReader(Dataset[Packed | list[Packed | BrokenSample]]):
    """Dataset that runs in the workers."""

    def __init__(self, reader: StreamReader, by_columns: bool, places: torch.Tensor):
        self._reader, self._by_columns, self._places = reader, by_columns, places

    def __getitem__(self, share: Share) -> Packed | list[Packed | BrokenSample]:
        worker = get_worker_info()
        assert worker is not None, "jobs are for workers"  # noqa: S101
        place = self._places[worker.id].numpy()
        place[0] = os.getpid()
        self._reader.place = place[1:]
        result = self._load(share, worker.id) if share else Packed(None)
        if isinstance(result, Packed):
            return result
        # Other samples of a failed job may be fine: retry them one by one.
        singles = _singles(share)
        return [result] if len(singles) == 1 else [self._load(single, worker.id) for single in singles]

    def _load(self, share: Share, worker_id: int) -> Packed | BrokenSample:
        try:
            if self._by_columns:
                return pack_columns(self._reader.read_columns(share))
            return pack(self._reader.read(share))
        except SampleError as error:
            cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
            return BrokenSample(f"{error}\n\nIn worker {worker_id}:\n{cause}")
        except Exception as error:  # a sample that cannot be sent to another process, say
            samples = self._reader.describe(share)
            return BrokenSample(f"worker {worker_id} could not send {samples}: {type(error).__name__}: {error}")


def _singles(share: Share) -> list[Share]:
    return [
        (StreamShare(part.stream_id, part.positions[place : place + 1], part.indices[place : place + 1]),)
        for part in share
        for place in range(len(part.indices))
    ]


class Workers:
    """Runs jobs in DataLoader workers, `num_workers` × `prefetch_factor` at any time.

    Args:
        reader: Reads samples.
        by_columns: Whether to read them by column.
        options: Worker options.
        seed: Seed of the workers' own generators.
    """

    def __init__(self, reader: StreamReader, by_columns: bool, options: WorkerOptions, seed: int = 0):
        self._answers = WorkerResults(options.limit_seconds)
        self.num_jobs = options.num_workers * options.prefetch_factor
        self._reader, self._line = reader, _JobQueue()
        self._places = torch.zeros(options.num_workers, 3, dtype=torch.int64)
        self._places.share_memory_()  # type: ignore[no-untyped-call]
        jobs = _JobReader(reader, by_columns, self._places)
        self._loader: DataLoader[Any] = DataLoader(jobs, sampler=self._line, **options.data_loader_arguments(seed))

    def submit(self, job: Job, is_urgent: bool = False) -> None:
        """Queues a job; an urgent one precedes jobs that no worker has yet."""
        (self._line.waiting.appendleft if is_urgent else self._line.waiting.append)(job)

    def start(self) -> None:
        """Starts the workers with the first queued jobs, unless they run already."""
        if self._answers.results is None:
            self._answers.start(self._loader)
            _widen(self._answers.results)

    def receive(self, step: int) -> Iterator[tuple[Job, Samples | BrokenSample]]:
        """Waits for all jobs due at a step or earlier.

        Args:
            step: Number of the step, from 1.

        Yields:
            Each finished job and its samples, in order. A failed job is split into one job per sample, each with its
            sample or error.

        Raises:
            SampleError: If a worker died or timed out.
        """
        while any(job.due <= step for job in itertools.chain(self._line.in_flight, self._line.waiting)):
            job = self._line.in_flight[0]
            try:
                result: Packed | list[Packed | BrokenSample] = next(self._answers)
            except RuntimeError as error:
                raise SampleError(self._describe_death(error, job)) from error
            self._line.in_flight.popleft()
            if isinstance(result, Packed):
                yield job, result.unpack()
                continue
            for share, single in zip(_singles(job.share), result, strict=True):
                yield Job(job.due, share), single if isinstance(single, BrokenSample) else single.unpack()

    def stop(self) -> None:
        """Stops the workers and discards their jobs."""
        self._answers.stop()
        self._line.in_flight.clear()
        self._line.waiting.clear()

    def _describe_death(self, error: RuntimeError, job: Job) -> str:
        is_late = isinstance(error, WorkerTimeoutError)
        died = {int(number) for number in re.findall(r"\d+", str(error))}
        places = [place[1:] for place in self._places.tolist() if place[0] in died or (is_late and place[0])]
        where = " and ".join(self._reader.describe_place(*place) for place in places) or "none yet"
        return (
            f"{'Worker processes do not answer' if is_late else 'A worker process died'}; current or last sample: "
            f"{where}. Requested: {self._reader.describe(job.share) or 'nothing'}. ({error}) "
            f"{likely_cause(error, self._answers.results)}".rstrip()
        )


def _widen(results: Any) -> None:
    """Enlarges the result pipe, if the system allows it, so that workers need not wait for the reader."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        pipe = results._worker_result_queue._reader  # noqa: SLF001  # no public option
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def keep_errors_out_of_training() -> None:
    """Defers the detection of a dead worker to the time when its samples are needed.

    Torch raises wherever the training process is, possibly inside a collective, which would leave other ranks waiting.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler) or getattr(handler, "is_quiet", False):
        return

    def quiet(number: int, frame: Any) -> None:
        with contextlib.suppress(RuntimeError):
            handler(number, frame)

    quiet.is_quiet = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGCHLD, quiet)
