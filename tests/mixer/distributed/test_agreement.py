"""Groups of collectives that an agreement makes, and tensors that a thread may still hold when Python ends."""

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from mixer.distributed import collectives as in_flight, collectives as module
from mixer.distributed.collectives import RankSync, keep_while_in_flight, wait_while_in_flight


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(dist, "get_backend", lambda *_: "nccl")
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("is_ended_before", [False, True])
def test_a_group_of_its_own_ends_with_the_agreement_and_no_other_one(is_ended_before: bool) -> None:
    rank_sync = RankSync(2)
    assert len(distributed_c10d._world.pg_map) == 2
    if is_ended_before:  # by whoever ended all groups
        dist.destroy_process_group()
    del rank_sync
    gc.collect()
    assert list(distributed_c10d._world.pg_map) == ([] if is_ended_before else [dist.group.WORLD])


@pytest.mark.usefixtures("one_rank")
def test_what_is_given_to_a_collective_is_held_and_nobody_else_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    monkeypatch.setattr(module, "keep_while_in_flight", lambda *sent: held.extend(one.data_ptr() for one in sent))
    rank_sync, values = RankSync(2), torch.ones(2)
    total, summed = rank_sync.all_reduce_sum(np.array([3])), rank_sync.add_up(values)
    told = rank_sync.broadcast(b"abc")
    assert (total.tolist(), summed.tolist(), told) == ([3], [1.0, 1.0], b"abc")
    assert len(held) == 4  # one for the length of what is told
    assert total.ctypes.data not in held
    assert values.data_ptr() not in held


def _send(kept: list[Tensor]) -> None:
    message = torch.zeros(3)
    kept.append(message)
    keep_while_in_flight(message)


def test_what_a_thread_has_is_held_and_the_end_waits_for_it_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "_sent", [])
    kept: list[Tensor] = []
    _send(kept)
    _send([])
    assert len(in_flight._sent) == 2
    kept.clear()
    _send(kept)
    assert len(in_flight._sent) == 1
    thread = threading.Timer(0.05, kept.clear)
    thread.start()
    wait_while_in_flight()
    assert not kept
    assert not in_flight._sent
    thread.join()
    monkeypatch.setattr(in_flight, "_MOST_SECONDS", 0.01)
    _send(kept)
    wait_while_in_flight()
    assert len(in_flight._sent) == 1
