"""Tensors of collectives that a thread may still hold when Python ends."""

import threading

import pytest
import torch
from torch import Tensor

from mixer.distributed import collectives as in_flight
from mixer.distributed.collectives import keep_while_in_flight, wait_while_in_flight


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
