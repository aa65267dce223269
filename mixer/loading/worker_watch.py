"""What is known of a worker that died or hangs, and how long it is waited for."""

import signal
import time
from typing import Any

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
