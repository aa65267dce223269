import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from mixer import Uniform
from mixer.distributed.signals import StopSignals
from mixer.loading.reader import SampleError, StreamReader
from mixer.loading.workers import Job, WorkerOptions, WorkerResults, Workers, WorkerTimeoutError
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.cursors import StreamShare
from mixer.utils.random_state import RandomState
from tests.mixer.loaders import Noisy, Wandering, batches_of, contents, make_loader, quick_and_full

pytestmark = pytest.mark.usefixtures("children")
Children = Callable[[], list[int]]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize(
    ("num_workers", "rank", "world_size", "by_stream"),
    quick_and_full([(2, 1, 3, True)], [(1, 0, 1, False), (3, 0, 1, True), (3, 1, 3, False)]),
)
def test_steps_are_the_same_to_the_bit_with_any_number_of_workers(num_workers, rank, world_size, by_stream) -> None:
    """With random samples, a random collator and weights that change with every step."""
    found, state = [], RandomState.capture()
    for number in (0, num_workers):
        persistent = bool(number and by_stream)
        loader = make_loader(number, rank, world_size, policy=Wandering(), persistent_workers=persistent)
        loader.by_stream = by_stream
        found.append([contents(batch) for batch in batches_of(loader, 8)])
        loader.stop()
        assert state.is_current()
    assert found[0] == found[1]
    assert len(found[0]) == 8  # into the second epoch


@pytest.mark.full
@pytest.mark.parametrize("persistent", [False, True])
def test_processes_outlive_an_epoch_only_if_they_persist(persistent: bool, tmp_path: Path, children: Children) -> None:
    def note(worker: int) -> None:
        (tmp_path / str(os.getpid())).touch()

    options = {"num_epochs": 2, "worker_init_fn": note, "persistent_workers": persistent}
    loader = make_loader(1, policy=Uniform(), **options)
    pids: set[int] = set()
    for _ in range(2):
        for batch in loader:
            pids |= set(children())
            loader.mixing.observe(batch.plan, np.zeros(3, dtype=np.int64))
        assert len(children()) == int(persistent)
    loader.stop()
    assert {int(path.name) for path in tmp_path.iterdir()} == pids
    assert len(pids) == (1 if persistent else 2)
    if not persistent:
        next(iter(make_loader(1)))  # an epoch that is left early
        assert children() == []


@pytest.mark.parametrize("num_workers", quick_and_full([1], [2]))
def test_a_stopped_loader_goes_on(num_workers: int, children: Children) -> None:
    found = []
    for number in (0, num_workers):
        loader, batches = make_loader(number, policy=Wandering(), persistent_workers=bool(number)), []
        loader.stop()
        for batch in batches_of(loader, 2 * num_workers):
            batches.append(contents(batch))
            assert len(children()) == number
            loader.stop()
            loader.stop()
            assert children() == []
        found.append(batches)
    assert found[0] == found[1]


class Deadly(Noisy):
    """Kills whoever reads its sample 3, as the out-of-memory killer would."""

    parent = os.getpid()

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            assert os.getpid() != self.parent, "read by a worker"
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Leaving(Noisy):
    """Ends whoever reads its sample 3."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return os._exit(7) if index == 3 else super().__getitem__(index)


class Stuck(Noisy):
    """Never gives sample 3, in native code that no signal interrupts, as a lock held at the fork."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(128)
        for _ in range(2 if index == 3 else 0):
            library.pthread_mutex_lock(lock)
        return super().__getitem__(index)


class Hanging(Noisy):
    """Never gives sample 3, in a worker."""

    def __getitem__(self, index: int) -> Any:
        return time.sleep(600) if index == 3 else super().__getitem__(index)


class TestBrokenSamples:
    def error_of(self, kind: Any, num_workers: int = 1, **options: Any) -> tuple[str, Any]:
        loader = make_loader(num_workers, datasets=[Noisy(0, 20), kind(1, 11)], **options)
        with pytest.raises(SampleError) as caught:
            list(batches_of(loader))
        return str(caught.value), loader

    @pytest.mark.parametrize("num_workers", quick_and_full([1], [2]))
    def test_a_worker_that_is_killed_is_told_with_the_sample_it_was_at(self, num_workers, children) -> None:
        message, loader = self.error_of(Deadly, num_workers, persistent_workers=True)
        assert "A worker process died; current or last sample: stream 's1', sample 3." in message
        assert "usually because memory ran out: use fewer workers (dataloader_num_workers)" in message
        loader.stop()
        assert children() == []

    def test_a_worker_that_ends_itself_is_told_with_its_status(self) -> None:
        message, _ = self.error_of(Leaving)
        assert "sample 3." in message
        assert "status 7" in message

    def test_a_worker_that_is_stuck_in_native_code_does_not_outlive_the_loader(self, monkeypatch, children) -> None:
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # until it is ended by force
        with StopSignals():  # workers leave SIGTERM to Python, as in a run
            _, loader = self.error_of(Stuck, limit_seconds=1.0)
            loader.stop()
        assert children() == []

    @pytest.mark.full
    def test_a_worker_that_hangs_is_told_with_the_sample_it_is_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # until it is ended by force
        message, _ = self.error_of(Hanging, limit_seconds=1.0)
        assert "Worker processes do not answer; current or last sample: stream 's1', sample 3." in message
        assert "(no answer for 1 seconds, nine tenths of ddp_timeout)" in message

    @pytest.mark.full
    def test_a_worker_that_dies_while_nobody_loads_disturbs_nobody(self, children: Children) -> None:
        loader = make_loader(1, policy=Uniform(), persistent_workers=True)
        batches = batches_of(loader)
        next(batches)
        (worker,) = children()
        os.kill(worker, signal.SIGKILL)
        end = time.monotonic() + 0.3
        while time.monotonic() < end:  # the training step, in which SIGCHLD arrives
            sum(range(1_000))
        with pytest.raises(SampleError, match="A worker process died"):
            list(batches)
        loader.stop()


class _Silent:
    """The iterator of a DataLoader whose workers never answer."""

    waits: ClassVar[list[float]] = []

    def __iter__(self) -> "_Silent":
        return self

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, None]:
        self.waits.append(timeout)
        time.sleep(timeout)
        return False, None

    def __next__(self) -> Any:
        while not self._try_get_data()[0]:
            pass


def test_workers_are_not_awaited_beyond_the_limit() -> None:
    answers = WorkerResults(limit_seconds=0.1)
    answers.start(_Silent())  # type: ignore[arg-type]
    with pytest.raises(WorkerTimeoutError):
        next(answers)
    assert max(_Silent.waits) <= 0.1  # other ranks wait for this one hardly longer


def job(step: int, *positions: int) -> Job:
    own = np.array(positions, dtype=np.int64)
    return Job(step, (StreamShare(0, own, own),))


@pytest.mark.usefixtures("in_process")
class TestJobs:
    def workers(self, *jobs: Job, num_workers: int = 2, prefetch_factor: int = 3, dataset: Any = range(100)) -> Workers:
        reader = StreamReader(["s"], [dataset], [1])
        workers = Workers(reader, False, WorkerOptions(num_workers, prefetch_factor))
        for each in jobs:
            workers.submit(each)
        workers.start()
        return workers

    def received(self, workers: Workers, step: int) -> list[tuple[float, list[int]]]:
        return [
            (done.due, [samples[number] for number in range(len(done.share[0].positions))] if done.share else [])
            for done, samples in workers.receive(step)
        ]

    def test_those_that_are_due_come_in_order_but_urgent_ones_before_those_that_wait(self) -> None:
        workers = self.workers(*(job(step, 2 * step, 2 * step + 1) for step in range(10)))
        assert self.received(workers, 1) == [(0, [0, 1]), (1, [2, 3])]
        assert self.received(workers, 1) == []
        assert workers.num_jobs == len(workers._line.in_flight) == 6  # as many are under way as workers take
        assert [each.due for each in workers._line.in_flight] == [2, 3, 4, 5, 6, 7]
        assert [each.due for each in workers._line.waiting] == [8, 9]
        workers.submit(job(0, 50), is_urgent=True)
        assert [due for due, _ in self.received(workers, 3)] == [2, 3, 4, 5, 6, 7, 0]
        assert self.received(workers, 9) == [(8, [16, 17]), (9, [18, 19])]

    def test_a_job_that_fails_comes_sample_by_sample(self) -> None:
        class Picky(Noisy):
            def __getitem__(self, index: int) -> Any:
                return index if index != 3 else 1 // 0

        done = list(self.workers(job(0, 2, 3, 4), dataset=Picky(0, 100)).receive(0))
        assert [each.share[0].positions.tolist() for each, _ in done] == [[2], [3], [4]]
        assert [isinstance(found, BrokenSample) or found[0] for _, found in done] == [2, True, 4]
        assert "ZeroDivisionError" in done[1][1].message
