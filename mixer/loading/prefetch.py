"""Prefetching by prediction: workers load the samples of the coming steps as if the weights stayed the same.

A step is planned when it is requested, with the latest weights. Predicted samples are ready by then; the others are
loaded on the spot. A wrong prediction costs time, never correctness. Hits do not depend on timing.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import numpy as np

from mixer.loading.batching import pick
from mixer.loading.collate import Row, Samples
from mixer.loading.workers import Job, Workers
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.controller import Mixing
from mixer.mixture.step_plan import StepPlan, StreamShare

Key = tuple[int, int, int]  # stream, position and index: a memory's sample at a position may still change

_PENDING = None
_MOST_KEPT = 10  # times the samples that workers prefetch


class PrefetchSource(Protocol):
    """The mixture as the prefetcher sees it."""

    mixing: Mixing

    def share(self, plan: StepPlan) -> list[StreamShare]:
        """Returns this rank's samples of a plan."""

    def read(self, share: Sequence[StreamShare]) -> Samples:
        """Loads samples in this process."""


class Prefetcher:
    """Requests samples from the workers ahead of time and keeps them until needed.

    Args:
        workers: Workers.
        source: The mixture.
        job_size: Maximum samples per job: a micro-batch, as in a DataLoader.
        has_others: Whether there are other ranks, which may train on samples loaded here.
    """

    def __init__(self, workers: Workers, source: PrefetchSource, job_size: int, has_others: bool):
        self.hits = self.misses = 0
        self._workers, self._source = workers, source
        self._job_size, self._has_others = job_size, has_others
        self._pool: dict[Key, Row | None] = {}
        self._plans: Iterator[StepPlan] = iter(())
        self._coming: deque[StepPlan] = deque()
        self._last_due = -1
        self._most_own = 0

    def take(self, plan: StepPlan, share: Sequence[StreamShare], last_step: int) -> list[Row]:
        """Returns this rank's samples of a step and requests those of the following steps.

        Args:
            plan: Plan of the step.
            share: This rank's samples of it.
            last_step: Last step to prefetch for.

        Returns:
            References to the samples, stream by stream; a `BrokenSample` replaces one that cannot be loaded.

        Raises:
            SampleError: If a worker died, or a sample cannot be loaded in this process.
        """
        self._receive(plan.step)
        missing, num_own = self._missing(share), _num_samples(share)
        self.misses = _num_samples(missing)
        self.hits = num_own - self.misses
        self._pool.update(dict.fromkeys(_keys(missing), _PENDING))
        is_much = self.misses > self._job_size
        if is_much:
            self._request(missing, plan.step, is_urgent=True)
        self._look_ahead(plan, num_own, last_step)
        self._workers.start()
        if is_much:
            self._receive(plan.step)
            missing = self._missing(share)
        if missing:
            self._keep(_keys(missing), self._source.read(missing))
        rows = list(map(self._pool.pop, _keys(share)))
        self._drop_needless(plan, num_own)
        return cast("list[Row]", rows)

    def stop(self) -> None:
        """Stops the workers and discards their samples."""
        self._workers.stop()
        self._pool.clear()
        self._coming.clear()
        self._last_due = -1

    def _receive(self, step: int) -> None:
        for job, samples in self._workers.receive(step):
            self._keep(_keys(job.share), samples)

    def _keep(self, keys: list[Key], samples: Samples | BrokenSample) -> None:
        pool, loaded = self._pool, Samples(None, [samples]) if isinstance(samples, BrokenSample) else samples
        for number, key in enumerate(keys):
            if pool.get(key, loaded) is _PENDING:  # else it was taken or went to another rank
                pool[key] = loaded, number

    def _missing(self, share: Sequence[StreamShare]) -> list[StreamShare]:
        return pick(share, ([row is _PENDING for row in map(self._pool.get, _part_keys(part))] for part in share))

    def _look_ahead(self, plan: StepPlan, num_own: int, last_step: int) -> None:
        jobs_per_step = max(1, -(-num_own // self._job_size))
        # One step more than the workers can hold: if counts change, earlier steps use its samples.
        horizon = -(-self._workers.num_jobs // jobs_per_step) + 2
        first_new = 0
        if self._coming and _is_same(self._coming[0], plan):
            self._coming.popleft()
            first_new = len(self._coming)
        else:
            self._coming.clear()
            self._plans = self._source.mixing.forecast()
        while len(self._coming) < horizon and (coming := next(self._plans, None)) is not None:
            self._coming.append(coming)
        for number, coming in enumerate(self._coming):
            # New jobs are queued behind the others: those due earlier would come too late.
            if number >= first_new and self._last_due <= coming.step <= last_step:
                own = self._source.share(coming)
                unrequested = pick(own, ([key not in self._pool for key in _part_keys(part)] for part in own))
                self._request(unrequested, coming.step - 1)
                if unrequested:
                    self._last_due = coming.step

    def _request(self, share: Sequence[StreamShare], due: int, is_urgent: bool = False) -> None:
        self._pool.update(dict.fromkeys(_keys(share), _PENDING))
        jobs = [Job(due, part) for part in _cut(share, self._job_size)]
        for job in reversed(jobs) if is_urgent else jobs:
            self._workers.submit(job, is_urgent)

    def _drop_needless(self, plan: StepPlan, num_own: int) -> None:
        """Discards samples that went to another rank, and the oldest leftovers of an erratic policy."""
        if self._has_others:
            ends = (plan.starts + plan.counts).tolist()
            for key in [key for key in self._pool if key[1] < ends[key[0]]]:
                del self._pool[key]
        self._most_own = max(self._most_own, num_own)  # an epoch's last step may be small
        most = _MOST_KEPT * max(self._workers.num_jobs * self._job_size, self._most_own)
        if len(self._pool) > most:
            loaded = [key for key, row in self._pool.items() if row is not _PENDING]
            for key in loaded[: len(self._pool) - most]:
                del self._pool[key]


def _num_samples(share: Sequence[StreamShare]) -> int:
    return sum(len(part.indices) for part in share)


def _keys(share: Sequence[StreamShare]) -> list[Key]:
    return [key for part in share for key in _part_keys(part)]


def _part_keys(part: StreamShare) -> Iterator[Key]:
    positions = part.positions if isinstance(part.positions, range) else part.positions.tolist()
    return zip(itertools.repeat(part.stream_id), positions, part.indices.tolist(), strict=False)


def _cut(share: Sequence[StreamShare], size: int) -> Iterator[tuple[StreamShare, ...]]:
    """Splits a share into pieces of at most `size` samples."""
    piece: list[StreamShare] = []
    room = size
    for part in share:
        start = 0
        while start < len(part.indices):
            stop = start + room
            piece.append(StreamShare(part.stream_id, part.positions[start:stop], part.indices[start:stop]))
            room -= len(piece[-1].indices)
            start = stop
            if room == 0:
                yield tuple(piece)
                piece, room = [], size
    if piece:
        yield tuple(piece)


def _is_same(predicted: StepPlan, plan: StepPlan) -> bool:
    names = ("counts", "starts", "weights")
    return all(np.array_equal(getattr(predicted, name), getattr(plan, name)) for name in names)
