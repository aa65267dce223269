"""Tensors of collectives that a thread may still hold when Python ends."""

import threading

import pytest
import torch
from torch import Tensor

from mixer.distributed import collectives as in_flight
from mixer.distributed.collectives import held_until_let_go, wait_until_let_go


@pytest.fixture(autouse=True)
def nothing_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "_sent", [])


def _send(kept: list[Tensor]) -> None:
    message = torch.zeros(3)
    kept.append(message)
    held_until_let_go(message)


def test_what_a_thread_has_let_go_of_is_held_no_longer() -> None:
    kept: list[Tensor] = []
    _send(kept)
    _send([])
    assert len(in_flight._sent) == 2
    kept.clear()
    _send(kept)
    assert len(in_flight._sent) == 1


def test_the_end_waits_for_the_thread_that_still_has_a_tensor() -> None:
    kept: list[Tensor] = []
    _send(kept)
    thread = threading.Timer(0.05, kept.clear)
    thread.start()
    wait_until_let_go()
    assert not kept
    assert not in_flight._sent
    thread.join()


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "_MOST_SECONDS", 0.01)
    kept: list[Tensor] = []
    _send(kept)
    wait_until_let_go()
    assert len(in_flight._sent) == 1
