import ctypes
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from mixer.distributed.signals import StopSignals
from mixer.loading.reader import SampleError
from mixer.utils.random_state import RandomState
from tests.mixer.loaders import Noisy, Wandering, batches_of, contents, make_loader, quick_and_full, split

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
        split(loader, by_stream=by_stream)
        found.append([contents(batch) for batch in batches_of(loader, 8)])
        loader.stop()
        assert state.is_current()
    assert found[0] == found[1]
    assert len(found[0]) == 8  # into the second epoch


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


class At3(Noisy):
    """Does something to whoever reads its sample 3."""

    def __init__(self, act: Callable[[], Any]):
        super().__init__(1, 11)
        self.act = act

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            assert multiprocessing.parent_process() is not None, "read by a worker"
            self.act()
        return super().__getitem__(index)


def lock_up() -> None:
    """Waits in native code that no signal interrupts, as for a lock that was held at the fork."""
    library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    for _ in range(2):
        library.pthread_mutex_lock(lock)


class TestBrokenSamples:
    def error_of(self, act: Callable[[], Any], num_workers: int = 1, **options: Any) -> tuple[str, Any]:
        loader = make_loader(num_workers, datasets=[Noisy(0, 20), At3(act)], **options)
        with pytest.raises(SampleError) as caught:
            list(batches_of(loader))
        return str(caught.value), loader

    @pytest.mark.parametrize("num_workers", quick_and_full([1], [2]))
    def test_a_worker_that_is_killed_is_told_with_the_sample_it_was_at(self, num_workers, children) -> None:
        kill = functools.partial(signal.raise_signal, signal.SIGKILL)  # as the out-of-memory killer does
        message, loader = self.error_of(kill, num_workers, persistent_workers=True)
        assert "A worker process died; current or last sample: stream 's1', sample 3." in message
        assert "usually because memory ran out: use fewer workers (dataloader_num_workers)" in message
        loader.stop()
        assert children() == []

    def test_a_worker_that_ends_itself_is_told_with_its_status(self) -> None:
        message, _ = self.error_of(lambda: os._exit(7))
        assert "sample 3." in message
        assert "status 7" in message

    def test_a_worker_that_is_stuck_in_native_code_does_not_outlive_the_loader(self, monkeypatch, children) -> None:
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # until it is ended by force
        with StopSignals():  # workers leave SIGTERM to Python, as in a run
            _, loader = self.error_of(lock_up, limit_seconds=1.0)
            loader.stop()
        assert children() == []

    @pytest.mark.full
    def test_a_worker_that_hangs_is_told_with_the_sample_it_is_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # until it is ended by force
        message, _ = self.error_of(lambda: time.sleep(600), limit_seconds=1.0)
        assert "Worker processes do not answer; current or last sample: stream 's1', sample 3." in message
        assert "(no answer for 1 seconds, nine tenths of ddp_timeout)" in message
