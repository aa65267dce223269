import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixer import Uniform
from mixer.loading.loader import MixingLoader
from mixer.loading.reader import SampleError, StreamReader
from mixer.loading.workers import Job, WorkerOptions, Workers
from mixer.mixture.bad_samples import BrokenSample
from mixer.mixture.cursors import StreamShare
from mixer.utils.random_state import RandomState
from tests.mixer.loaders import (
    Failing,
    InProcess,
    Noisy,
    Numbers,
    Unpicklable,
    Wandering,
    batches_of,
    children,
    contents,
    make_loader,
    num_own,
    stacking_collator,
)

pytestmark = pytest.mark.usefixtures("no_workers_stay")


class Columns(Numbers):
    def read_columns(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        return {"x": torch.stack([self[index]["x"] for index in indices.tolist()])}


class TestTheSameSteps:
    """To the bit, with random samples, a random collator and weights that change with every step."""

    @pytest.mark.parametrize(
        ("num_workers", "rank", "world_size", "by_stream"),
        [(1, 0, 1, False), (2, 1, 3, True), pytest.param(2, 0, 1, False, marks=pytest.mark.full)],
    )
    def test_with_any_number_of_workers(self, num_workers: int, rank: int, world_size: int, by_stream: bool) -> None:
        state, found, hits = RandomState.capture(), [], []
        for number in (0, num_workers, num_workers):
            persistent = bool(number and by_stream)
            loader = make_loader(number, rank, world_size, policy=Wandering(), persistent_workers=persistent)
            loader.by_stream = by_stream
            own = []
            for batch in batches_of(loader, 8):
                own.append(contents(batch))
                hits.append(loader.hits_and_misses)
                assert not number or sum(hits[-1]) == num_own(batch)
            found.append(own)
            loader.stop()
        assert found[0] == found[1] == found[2]
        assert len(found[0]) == 8  # into the second epoch
        assert hits[8:16] == hits[16:]
        assert state.is_current()

    def test_samples_read_by_columns(self) -> None:
        found = []
        for number in (0, 1):
            datasets = [Columns(k, 9) for k in range(2)]
            loader = make_loader(number, datasets=datasets, collator=stacking_collator, stack_columns=dict)
            found.append([contents(batch) for batch in batches_of(loader, 4)])
            loader.stop()
        assert found[0] == found[1]


class TestProcesses:
    @pytest.mark.parametrize("persistent", [False, True])
    def test_they_live_from_epoch_to_epoch_only_if_they_persist_and_each_is_initialised(
        self, persistent: bool, tmp_path: Path
    ) -> None:
        def note(worker: int) -> None:
            (tmp_path / str(os.getpid())).write_text(str(worker))

        options: dict[str, Any] = {"persistent_workers": persistent, "worker_init_fn": note}
        loader = make_loader(1, policy=Uniform(), num_epochs=2, **options)
        pids, after_an_epoch = set(), []
        for _ in range(2):
            for batch in loader:
                pids |= children()
                loader.mixing.observe(batch.plan, np.full(3, np.nan), np.zeros(3, dtype=np.int64))
            after_an_epoch.append(len(children()))
        loader.stop()
        assert len(pids) == (1 if persistent else 2)
        assert after_an_epoch == ([1, 1] if persistent else [0, 0])
        assert {int(path.name) for path in tmp_path.iterdir()} == pids

    def test_a_stopped_loader_goes_on_and_may_be_stopped_twice_or_before_it_begins(self) -> None:
        found = []
        for number in (0, 1):
            loader, batches = make_loader(number, policy=Wandering(), persistent_workers=True), []
            loader.stop()
            for batch in batches_of(loader, 3):
                assert len(children()) == number
                batches.append(contents(batch))
                loader.stop()
                loader.stop()
                assert children() == set()
            found.append(batches)
        assert found[0] == found[1]

    def test_an_epoch_that_is_left_early_ends_them(self) -> None:
        for _ in make_loader(1):
            break
        assert children() == set()


class Deadly(Noisy):
    """Kills whoever reads one of its samples, as the out-of-memory killer would."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            assert os.getpid() != PARENT, "read by a worker"
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


PARENT = os.getpid()


class Hanging(Noisy):
    """Never gives sample 3, in a worker."""

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            time.sleep(600)
        return super().__getitem__(index)


def run_into_an_error(broken: Any, **options: Any) -> tuple[str, MixingLoader]:
    loader = make_loader(1, datasets=[Noisy(0, 20), broken(1, 11)], **options)
    with pytest.raises(SampleError) as caught:
        list(batches_of(loader))
    return str(caught.value), loader


class TestBrokenSamples:
    def test_a_sample_that_fails_is_named_with_the_traceback_and_the_loader_goes_on(self) -> None:
        message, loader = run_into_an_error(Failing, persistent_workers=True)
        assert message.startswith("Stream 's1': sample 3 could not be loaded: OSError: disk on fire\n\nIn worker 0:")
        assert 'raise OSError("disk on fire")' in message
        loader.stop()
        loader.mixing.set_weights([1, 0])
        assert loader.next_batch() is not None
        loader.stop()

    def test_a_sample_that_cannot_be_sent_is_named(self) -> None:
        message, _ = run_into_an_error(Unpicklable)
        assert message.startswith("worker 0 could not send stream 's1', samples [3]")

    def test_a_worker_that_is_killed_is_told_with_the_sample_it_was_at(self) -> None:
        message, loader = run_into_an_error(Deadly, persistent_workers=True)
        assert "A worker process died; current or last sample: stream 's1', sample 3." in message
        assert "usually because memory ran out: use fewer workers (dataloader_num_workers)" in message
        loader.stop()
        assert children() == set()

    def test_a_worker_that_hangs_is_told_with_the_sample_it_is_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # until it is ended by force
        message, _ = run_into_an_error(Hanging, limit_seconds=1.0)
        assert "Worker processes do not answer; current or last sample: stream 's1', sample 3." in message
        assert "(no answer for 1 seconds, nine tenths of ddp_timeout)" in message

    def test_a_worker_that_dies_while_nobody_loads_disturbs_nobody(self) -> None:
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


def job(step: int, *positions: int) -> Job:
    own = np.array(positions, dtype=np.int64)
    return Job(step, (StreamShare(0, own, own),))


class Picky(Noisy):
    def __getitem__(self, index: int) -> Any:
        return index if index != 3 else 1 // 0


class TestJobs:
    @pytest.fixture(autouse=True)
    def in_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mixer.loading.workers.DataLoader", InProcess)
        monkeypatch.setattr("mixer.loading.workers.get_worker_info", lambda: InProcess.worker)

    def workers(self, *jobs: Job, num_workers: int = 2, prefetch_factor: int = 3, dataset: Any = range(100)) -> Workers:
        workers = Workers(StreamReader(["s"], [dataset], [1]), False, WorkerOptions(num_workers, prefetch_factor))
        for each in jobs:
            workers.submit(each)
        workers.start()
        return workers

    def received(self, workers: Workers, step: int) -> list[tuple[float, list[int]]]:
        return [
            (done.due, [samples[number] for number in range(len(done.share[0].positions))] if done.share else [])
            for done, samples in workers.receive(step)
        ]

    def test_those_that_are_due_come_in_order_and_nothing_else_is_waited_for(self) -> None:
        workers = self.workers(*[job(step, 2 * step, 2 * step + 1) for step in range(10)])
        assert workers.num_jobs == len(workers._line.in_flight) == 6  # as many are under way as workers take
        assert self.received(workers, 1) == [(0, [0, 1]), (1, [2, 3])]
        assert self.received(workers, 1) == []
        assert self.received(workers, 2) == [(2, [4, 5])]
        assert [each.due for each in workers._line.in_flight] == [3, 4, 5, 6, 7, 8]
        assert [each.due for each in workers._line.waiting] == [9]

    def test_an_urgent_one_goes_before_those_that_wait(self) -> None:
        workers = self.workers(*[job(step, step) for step in (1, 2, 3, 4)], num_workers=1, prefetch_factor=2)
        workers.submit(job(0, 50), is_urgent=True)
        assert self.received(workers, 0) == [(1, [1]), (2, [2]), (0, [50])]
        assert self.received(workers, 4) == [(3, [3]), (4, [4])]

    def test_turns_without_a_job_are_passed_over_and_stopped_workers_forget_theirs(self) -> None:
        workers = self.workers(prefetch_factor=2)
        workers.submit(job(0, 7))
        assert [found for found in self.received(workers, 0) if found[1]] == [(0, [7])]
        workers.submit(job(0, 1))
        workers.stop()
        assert self.received(workers, 0) == []
        workers.start()
        workers.submit(job(0, 2))
        assert (0, [2]) in self.received(workers, 0)

    def test_a_job_that_fails_comes_sample_by_sample(self) -> None:
        done = list(self.workers(job(0, 2, 3, 4), dataset=Picky(0, 100)).receive(0))
        assert [each.share[0].positions.tolist() for each, _ in done] == [[2], [3], [4]]
        assert [isinstance(found, BrokenSample) or found[0] for _, found in done] == [2, True, 4]
        assert "ZeroDivisionError" in done[1][1].message

    def test_a_torn_off_worker_is_described(self) -> None:
        workers = self.workers()
        workers._places[1] = torch.tensor([4321, 0, 17])
        error = RuntimeError("DataLoader worker (pid(s) 4321) exited unexpectedly")
        message = workers._describe_death(error, job(0, 5, 6))
        assert "stream 's', sample 17" in message
        assert "Requested: stream 's', samples [5, 6]" in message
        unknown = workers._describe_death(RuntimeError("pid(s) 99"), Job())
        assert "none yet" in unknown
        assert "Requested: nothing" in unknown
