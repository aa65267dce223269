"""Tensors of collectives that a thread of the process group may still hold, and the wait for it before Python ends.

A rank goes on from a collective before the thread that carried it out has let go of its tensors. To let go of one that
Python knows too, the thread needs the interpreter's lock; asking for it while the interpreter ends, it is ended itself
in the midst of C++, which aborts the process ("terminate called without an active exception"). A training that ends
with a collective is followed by the end of the interpreter at once, so it is waited for, where the interpreter ends:
whoever goes on with `torch.distributed` after a training notices nothing.
"""

import atexit
import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor

_MOST_SECONDS = 5.0  # a thread whose collective was given up waits on for other ranks, and lets go of nothing
_POLL_SECONDS = 0.001


def _references(tensors: Sequence[Tensor]) -> list[int]:
    return [sys.getrefcount(tensor) for tensor in tensors]


_sent: list[Tensor] = []
[_ALONE] = _references([torch.empty(0)])  # of a tensor that nobody has but a list


def held_until_let_go(*tensors: Tensor) -> None:
    """Holds tensors on the CPU until no thread has them any more; to be called before each collective.

    Args:
        *tensors: Those that are given to the collective; the caller keeps neither them nor views of them.
    """
    _drop()
    _sent.extend(tensor for tensor in tensors if tensor.device.type == "cpu")


def _drop() -> None:
    counts = _references(_sent)
    _sent[:] = [tensor for tensor, count in zip(_sent, counts, strict=True) if count > _ALONE]


@atexit.register
def wait_until_let_go() -> None:
    """Waits until threads have let go of all that was sent."""
    end = time.monotonic() + _MOST_SECONDS
    _drop()
    while _sent and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        _drop()
