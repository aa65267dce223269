"""Small collectives between ranks that fail on all ranks instead of hanging."""

import atexit
import json
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from mixer.utils.arrays import Int64Array
from mixer.utils.text import in_words

_MOST_SECONDS = 5.0  # the thread of an abandoned collective waits for other ranks and releases nothing
_POLL_SECONDS = 0.001
_sent: list[Tensor] = []
Result = TypeVar("Result")


def _references(tensors: Sequence[Tensor]) -> list[int]:
    return [sys.getrefcount(tensor) for tensor in tensors]


[_ALONE] = _references([torch.empty(0)])  # of a tensor that only a list holds


def keep_while_in_flight(*tensors: Tensor) -> None:
    """Keeps CPU tensors alive until no thread uses them; call it before each collective.

    Args:
        *tensors: Tensors of the collective; the caller keeps neither them nor views of them.
    """
    _drop()
    _sent.extend(tensor for tensor in tensors if tensor.device.type == "cpu")


def _drop() -> None:
    counts = _references(_sent)
    _sent[:] = [tensor for tensor, count in zip(_sent, counts, strict=True) if count > _ALONE]


@atexit.register
def wait_while_in_flight() -> None:
    """Waits until threads have released all sent tensors."""
    end = time.monotonic() + _MOST_SECONDS
    _drop()
    while _sent and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        _drop()


class OtherRankError(RuntimeError):
    """Another rank could not prepare its part of a step; the cause follows when the step is confirmed."""


class RemoteError(RuntimeError):
    """Another rank failed; the message holds its error."""


class RankSync:
    """Synchronises the ranks at every step.

    Collectives before the forward pass use the CPU, beside those of the gradients, so that they never wait for a GPU.

    Args:
        world_size: Number of ranks.
        timeout: Timeout of collectives, as in `torch.distributed`; `None` uses torch's default.
    """

    def __init__(self, world_size: int, timeout: timedelta | None = None):
        self.world_size = world_size
        self._group: dist.ProcessGroup | None = None
        if world_size > 1 and dist.get_backend() != "gloo":
            self._group = dist.new_group(backend="gloo", timeout=timeout)
            weakref.finalize(self, _end_group, self._group)
        elif world_size > 1 and timeout is not None:  # accelerate does not set it for a group on CPUs
            distributed_c10d._set_pg_timeout(timeout)  # noqa: SLF001  # no public equivalent

    def max_over_ranks(self, number: int) -> int:
        """Returns the maximum of a number over ranks, through the CPU."""
        return int(self.all_reduce_max(np.array([number]))[0])

    def all_reduce_max(self, numbers: Int64Array) -> Int64Array:
        """Returns the elementwise maximum over ranks, int64 `[count]`, through the CPU."""
        return self._reduce(numbers, dist.ReduceOp.MAX)

    def all_reduce_min(self, numbers: Int64Array) -> Int64Array:
        """Returns the elementwise minimum over ranks, int64 `[count]`, through the CPU."""
        return self._reduce(numbers, dist.ReduceOp.MIN)

    def all_reduce_sum(self, numbers: Int64Array) -> Int64Array:
        """Returns the elementwise sum over ranks, int64 `[count]`, through the CPU."""
        return self._reduce(numbers, dist.ReduceOp.SUM)

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Gathers bytes of any length from all ranks, in order, through the CPU."""
        if self.world_size == 1:
            return [content]
        lengths = np.zeros(self.world_size, dtype=np.int64)
        lengths[dist.get_rank()] = len(content)
        lengths = self.all_reduce_sum(lengths)
        room = int(lengths.max())
        own = torch.from_numpy(np.frombuffer(bytearray(content.ljust(room, b"\0")), dtype=np.uint8))
        parts = [torch.empty(room, dtype=torch.uint8) for _ in range(self.world_size)]
        if room:
            keep_while_in_flight(own, *parts)
            dist.all_gather(parts, own, group=self._group)
        return [part[:length].numpy().tobytes() for part, length in zip(parts, lengths.tolist(), strict=True)]

    def gather(self, content: Any) -> list[Any]:
        """Gathers plain data from all ranks, in order, through the CPU; tuples become lists."""
        return [json.loads(text) for text in self.gather_bytes(json.dumps(content).encode())]

    def broadcast(self, content: bytes) -> bytes:
        """Broadcasts bytes of any length from the first rank, through the CPU."""
        if self.world_size == 1:
            return content
        is_first = dist.get_rank() == 0
        numbers = np.zeros(self.max_over_ranks(len(content) * is_first), dtype=np.int64)
        if is_first:
            numbers[:] = np.frombuffer(content, dtype=np.uint8)
        return self.all_reduce_sum(numbers).astype(np.uint8).tobytes()

    def _reduce(self, numbers: Int64Array, operation: Any) -> Int64Array:
        if self.world_size == 1 or not numbers.size:
            return numbers
        message = torch.from_numpy(numbers.astype(np.int64))
        keep_while_in_flight(message)
        dist.all_reduce(message, op=operation, group=self._group)
        result: Int64Array = message.numpy().copy()
        return result

    def add_up(self, values: Tensor) -> Tensor:
        """Sums a small tensor over ranks in place, on its device, and returns it."""
        if self.world_size > 1:
            message = values.detach().clone()
            keep_while_in_flight(message)
            dist.all_reduce(message, group=self._group if message.device.type == "cpu" else None)  # NCCL has no CPU
            values.copy_(message)
        return values

    def run_on_all(self, work: Callable[[], Result]) -> Result:
        """Runs work that may fail on one rank, and fails on all ranks if it does; all ranks must call it.

        Args:
            work: This rank's part, without collectives.

        Returns:
            Its result.

        Raises:
            RemoteError: With other ranks' errors; a failed rank raises its own.
        """
        error: Exception | None = None
        try:
            result = work()
        except Exception as caught:  # sent to all ranks before it is raised
            error = caught
        if self.max_over_ranks(int(error is not None)):
            self.raise_on_all(error)
        return result

    def raise_on_all(self, error: Exception | None) -> None:
        """Raises on all ranks once they know that one failed; all ranks must call it.

        Args:
            error: This rank's error, or `None`.

        Raises:
            RemoteError: With other ranks' errors; a failed rank raises its own.
        """
        if error is not None and self.world_size == 1:
            raise error
        # The text of an error is never empty: it includes the type.
        messages = self.gather_bytes(b"" if error is None else in_words(error).encode(errors="replace"))
        if error is not None:
            raise error
        failed = {rank: message.decode() for rank, message in enumerate(messages) if message}
        raise RemoteError("; ".join(f"rank {rank} failed: {message}" for rank, message in failed.items()))


def _end_group(group: dist.ProcessGroup) -> None:
    """Ends the threads of a group, unless all groups have been destroyed."""
    if dist.is_initialized() and group in distributed_c10d._world.pg_map:  # noqa: SLF001  # no public equivalent
        dist.destroy_process_group(group)
