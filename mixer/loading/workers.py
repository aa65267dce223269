"""Worker processes that load samples ahead, in the order in which they were asked for."""

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
from mixer.loading.reader import SampleError, StreamReader
from mixer.loading.transport import Packed, Samples, pack, pack_columns
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.cursors import StreamShare

_MEMORY = (
    "It was killed from outside (signal 9), most often because memory ran out: take fewer workers "
    "(dataloader_num_workers), a smaller dataloader_prefetch_factor, or a data set that holds less."
)


class WorkerTimeoutError(RuntimeError):
    """A worker gave nothing for too long."""


class Patience:
    """Ends the wait for workers that give nothing, and leaves torch's own look for dead ones as it is.

    A DataLoader's own `timeout` would find a dead worker no sooner than one that hangs.

    Args:
        limit_seconds: How long is waited; `None` waits for ever.
    """

    def __init__(self, limit_seconds: float | None = None):
        self.limit_seconds = limit_seconds
        self._started = 0.0

    def begin(self) -> None:
        """Is called when a wait begins."""
        self._started = time.monotonic()

    def watch(self, results: Any) -> None:
        """Looks at the clock as often as torch looks for workers that died.

        Args:
            results: The iterator of a DataLoader.
        """
        look, limit_seconds = getattr(results, "_try_get_data", None), self.limit_seconds
        if look is None or limit_seconds is None:
            return

        def look_in_time(*args: Any, **kwargs: Any) -> Any:
            found = look(*args, **kwargs)
            if not found[0] and time.monotonic() - self._started > limit_seconds:
                raise WorkerTimeoutError(f"nothing came for {limit_seconds:g} seconds, nine tenths of ddp_timeout")
            return found

        results._try_get_data = look_in_time


def likely_cause(error: Exception, results: Any = None) -> str:
    """Says why a worker may have died or not answered.

    Args:
        error: What torch, or `Patience`, raised.
        results: The iterator of a DataLoader, which knows how its workers ended.

    Returns:
        A sentence, or nothing.
    """
    if isinstance(error, WorkerTimeoutError):
        return "If reading takes so long, raise ddp_timeout; else something that it waits for does not answer."
    was_killed = any(worker.exitcode == -signal.SIGKILL for worker in getattr(results, "_workers", ()))
    return _MEMORY if was_killed or "signal: Killed" in str(error) else ""


Share = tuple[StreamShare, ...]
_PIPE_BYTES = 1 << 20


@dataclass(frozen=True)
class Job:
    """Samples that one worker loads in one go.

    Args:
        due: Number of the step that they are meant for; infinite for a job without samples, which only keeps the
            workers' turns.
        share: The samples.
    """

    due: float = float("inf")
    share: Share = ()


@dataclass
class _Line:
    """The jobs that workers have and those that wait; a DataLoader takes it for its sampler and never sees it end."""

    in_flight: deque[Job] = field(default_factory=deque)
    waiting: deque[Job] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Share]:
        return self

    def __next__(self) -> Share:
        job = self.waiting.popleft() if self.waiting else Job()
        self.in_flight.append(job)
        return job.share


class _JobReader(Dataset[Packed | list[Packed | BrokenSample]]):
    """What runs in a worker."""

    def __init__(self, reader: StreamReader, by_columns: bool, places: torch.Tensor):
        self._reader, self._by_columns, self._places = reader, by_columns, places

    def __getitem__(self, share: Share) -> Packed | list[Packed | BrokenSample]:
        worker = get_worker_info()
        assert worker is not None, "jobs are for workers"  # noqa: S101
        place = self._places[worker.id].numpy()
        place[0] = os.getpid()
        self._reader.note_place(place[1:])
        result = self._load(share, worker.id) if share else Packed(None)
        if isinstance(result, Packed):
            return result
        # Not every sample of a failed job must fail: which step needs which of them is not known yet.
        return [result] if _num_samples(share) == 1 else [self._load(single, worker.id) for single in _singles(share)]

    def _load(self, share: Share, worker_id: int) -> Packed | BrokenSample:
        try:
            return (
                pack_columns(self._reader.read_columns(share)) if self._by_columns else pack(self._reader.read(share))
            )
        except SampleError as error:
            cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
            return BrokenSample(f"{error}\n\nIn worker {worker_id}:\n{cause}")
        except Exception as error:  # a sample that cannot be sent to another process, say
            samples = self._reader.describe(share)
            return BrokenSample(
                f"{samples} could not be handed over by worker {worker_id}: {type(error).__name__}: {error}"
            )


def _num_samples(share: Share) -> int:
    return sum(len(part.indices) for part in share)


def _singles(share: Share) -> list[Share]:
    return [
        (StreamShare(part.stream_id, part.positions[place : place + 1], part.indices[place : place + 1]),)
        for part in share
        for place in range(len(part.indices))
    ]


class Workers:
    """Runs jobs in the workers of a DataLoader, `num_workers` × `prefetch_factor` of them at any time.

    Args:
        reader: Reads the samples.
        by_columns: Whether it reads them by columns.
        num_workers: Number of processes.
        prefetch_factor: Number of jobs that each of them has, as in a DataLoader.
        worker_init_fn: What a worker does first, as in a DataLoader.
        seed: Seed of the workers' own generators.
        multiprocessing_context: How they are started, as in a DataLoader.
        limit_seconds: How long samples are waited for; `None` waits for ever.
    """

    def __init__(
        self,
        reader: StreamReader,
        by_columns: bool,
        num_workers: int,
        prefetch_factor: int,
        worker_init_fn: Callable[[int], None] | None = None,
        seed: int = 0,
        multiprocessing_context: Any = None,
        limit_seconds: float | None = None,
    ):
        self._patience = Patience(limit_seconds)
        self.num_jobs = num_workers * prefetch_factor
        self._reader, self._line = reader, _Line()
        self._places = torch.zeros(num_workers, 3, dtype=torch.int64)
        self._places.share_memory_()  # type: ignore[no-untyped-call]
        self._loader: DataLoader[Any] = DataLoader(
            _JobReader(reader, by_columns, self._places),
            batch_size=None,
            sampler=self._line,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            collate_fn=_as_it_is,
            worker_init_fn=partial(begin_worker, worker_init_fn),
            multiprocessing_context=multiprocessing_context,
            generator=torch.Generator().manual_seed(seed % 2**63),
        )
        self._results: Iterator[Packed | list[Packed | BrokenSample]] | None = None

    def submit(self, job: Job, is_urgent: bool = False) -> None:
        """Puts a job in the line.

        Args:
            job: The job.
            is_urgent: Whether it goes before those that no worker has yet.
        """
        if is_urgent:
            self._line.waiting.appendleft(job)
        else:
            self._line.waiting.append(job)

    def start(self) -> None:
        """Starts the workers with the first jobs of the line, if they do not run."""
        if self._results is None:
            self._results = iter(self._loader)
            _widen(self._results)
            self._patience.watch(self._results)
            keep_errors_out_of_training()

    def receive(self, step: int) -> Iterator[tuple[Job, Samples | BrokenSample]]:
        """Waits for all jobs that are meant for a step or an earlier one.

        Args:
            step: Number of the step, from 1.

        Yields:
            Each job that is done by then, and its samples in order. One that failed comes sample by sample, each as a
            job of its own, with the sample or what went wrong.

        Raises:
            SampleError: If a worker died, or gave nothing for too long.
        """
        while any(job.due <= step for job in itertools.chain(self._line.in_flight, self._line.waiting)):
            assert self._results is not None, "workers are started before they are waited for"  # noqa: S101
            job = self._line.in_flight[0]
            self._patience.begin()
            try:
                result = next(self._results)
            except RuntimeError as error:
                raise SampleError(self._describe_death(error, job)) from error
            self._line.in_flight.popleft()
            if isinstance(result, Packed):
                yield job, result.unpack()
                continue
            for share, single in zip(_singles(job.share), result, strict=True):
                yield Job(job.due, share), single if isinstance(single, BrokenSample) else single.unpack()

    def stop(self) -> None:
        """Ends the workers and forgets their jobs."""
        # An error that is still looked at holds the iterator, and with it the workers, alive.
        getattr(self._results, "_shutdown_workers", lambda: None)()
        self._results = None
        self._line.in_flight.clear()
        self._line.waiting.clear()

    def _describe_death(self, error: RuntimeError, job: Job) -> str:
        is_late = isinstance(error, WorkerTimeoutError)
        died = {int(number) for number in re.findall(r"\d+", str(error))}
        places = [place[1:] for place in self._places.tolist() if place[0] in died or (is_late and place[0])]
        where = " and ".join(self._reader.describe_place(*place) for place in places) or "no sample yet"
        return (
            f"{'Worker processes do not answer' if is_late else 'A worker process died'}; what "
            f"{'they are' if is_late else 'it was'} at, or had just done: {where}. What was waited for: "
            f"{self._reader.describe(job.share) or 'nothing'}. ({error}) {likely_cause(error, self._results)}".rstrip()
        )


def _widen(results: Any) -> None:
    """Widens the pipe of the results, where the system can, so that workers do not wait until one is asked for."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(results._worker_result_queue._reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _as_it_is(result: Any) -> Any:
    return result


def keep_errors_out_of_training() -> None:
    """Lets the death of a worker be found when its samples are waited for.

    Torch raises wherever the training process happens to be, in the middle of a collective maybe, which leaves the
    other ranks waiting.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        return
    if getattr(handler, "is_quiet", False):
        return

    def quiet(number: int, frame: Any) -> None:
        try:
            handler(number, frame)
        except RuntimeError:
            return

    quiet.is_quiet = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGCHLD, quiet)
