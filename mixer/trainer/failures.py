"""Attributes a distributed failure to the rank that caused it."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.constants import default_pg_timeout

from mixer.distributed.collectives import RemoteError
from mixer.distributed.signals import RunInterrupted, RunTerminated
from mixer.loading.batching import MicroBatchMemoryError
from mixer.trainer.confirmation import DisagreementError
from mixer.utils.text import in_words

_KEY, _CALL = "mixer/why-a-rank-ended", "mixer/who-is-there"
_POLL_SECONDS = 0.25
_MOST_POLLS_A_SECOND = 1_000  # of all ranks together: one process keeps the store
_POLLS_TO_ANSWER = 8
_SECONDS_TO_BE_HEARD = 10.0  # of the rank that keeps the store: another may be between two calls, or slow
_heard: list[str] = []  # the last note read; the store may be gone by now
# These are raised on all ranks together and need no explanation.
_TOLD = (RemoteError, DisagreementError, MicroBatchMemoryError, RunInterrupted, RunTerminated)
_SECONDS_TO_BE_TOLD = 1.0
_LATE = "timed out|timeout"  # gloo's words for a rank that it waits for, and one that it has given up
OUT_OF_MEMORY = "Out of memory: "
Arguments = ParamSpec("Arguments")


def leave_note(text: str) -> None:
    """Leaves a note for the other ranks: why this rank ends."""
    _with_store(lambda store: store.set(_KEY, f"{dist.get_rank()} {text}"))


def read_note() -> str | None:
    """Reads the note of another rank; `None` if there is none, or the store ended before anyone read it."""
    note: str | None = _with_store(_read)
    if note is None:  # the store is gone
        return _heard[0] if _heard else None
    return note.partition(" ")[2] or None


def _read(store: Any) -> str:
    # A note is emptied, never deleted: `get` would block if the key vanished after the check.
    return store.get(_KEY).decode() if store.check([_KEY]) else ""


def remove_note() -> None:
    """Removes this rank's notes of an earlier run in the same processes; those of other ranks may be new."""
    note = _with_store(_read)
    if note == "":
        _heard.clear()
    elif note is not None and note.partition(" ")[0] == str(_rank()):
        _heard.clear()
        _with_store(lambda store: store.set(_KEY, ""))
    _with_store(lambda store: [store.delete_key(key) for key in (_waiting(_rank()), _here(_rank()))])


def wait_until_note_is_read(gone: Sequence[int] = ()) -> None:
    """Keeps the rank that hosts the store alive until the others have read the note, or do not answer.

    Args:
        gone: Ranks that are not waited for.
    """
    _set(_here(_rank()))
    if _keeps_store(_rank()):
        _absent(max(_SECONDS_TO_BE_HEARD, _POLLS_TO_ANSWER * _poll_seconds()), gone)


def find_missing_ranks() -> list[int]:
    """Calls all ranks and returns those that do not answer: their processes have ended or stopped."""
    if not _set(_CALL):
        return [0] if _keeps_store(0) else []
    return _absent(_POLLS_TO_ANSWER * _poll_seconds())


def _absent(seconds: float, gone: Sequence[int] = ()) -> list[int]:
    """Returns the ranks that do not answer in time."""
    _set(_here(_rank()))
    end = time.monotonic() + seconds
    absent = [rank for rank in range(dist.get_world_size() if dist.is_initialized() else 0) if rank not in gone]
    while absent and time.monotonic() < end:
        absent = [rank for rank in absent if not _is_set(_here(rank))]
        time.sleep(_POLL_SECONDS / 5)
    return absent


def _set(key: str) -> bool:
    """Sets a key in the store; `False` if there is none."""
    return bool(_with_store(lambda store: store.set(key, "") or True))


def _is_set(key: str) -> bool:
    return bool(_with_store(lambda store: store.check([key])))


class Listener:
    """Reads the notes of other ranks and answers their calls, in a background thread."""

    def __init__(self) -> None:
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="mixer-listener", daemon=True)

    def __enter__(self) -> "Listener":
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(_POLLS_TO_ANSWER * _POLL_SECONDS)

    def _listen(self) -> None:
        while not self._ends.wait(_poll_seconds()) and _with_store(self._answer) is not None:
            pass

    @staticmethod
    def _answer(store: Any) -> bool:
        note = _read(store)
        _heard[:] = [note.partition(" ")[2]] if note else []
        if note or store.check([_CALL]):
            store.set(_here(_rank()), "")
        return True


def _poll_seconds() -> float:
    return max(_POLL_SECONDS, dist.get_world_size() / _MOST_POLLS_A_SECOND if dist.is_initialized() else 0.0)


def _keeps_store(rank: int) -> bool:
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _waiting(rank: int) -> str:
    return f"mixer/waited/{rank}"


def _here(rank: int) -> str:
    return f"mixer/here/{rank}"


def _with_store(use: Callable[[Any], Any]) -> Any:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    with contextlib.suppress(Exception):  # the store may be gone, and notes are optional
        return use(distributed_c10d._get_default_store())  # noqa: SLF001 torch
    return None


@contextlib.contextmanager
def reporting_to_all_ranks(where: Callable[[], str], timeout_seconds: Callable[[], float]) -> Iterator[None]:
    """Reports an error of one rank on all ranks, including `SystemExit` and `KeyboardInterrupt`.

    Args:
        where: Returns this rank's position in the run.
        timeout_seconds: Returns how long ranks wait for each other.

    Yields:
        Nothing.
    """
    remove_note()
    with Listener():
        try:
            yield
        except BaseException as error:
            rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
            if (explanation := explain_error(error, where(), rank, world_size, timeout_seconds())) is None:
                raise
            raise explanation from error


def reports_errors_to_all_ranks(init: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Decorates a trainer's `__init__` so that its error on one rank is reported on all."""

    @wraps(init)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        made = vars(args[0])
        with reporting_to_all_ranks(
            lambda: "while the trainer was constructed",
            lambda: made["args"].ddp_timeout if "args" in made else default_pg_timeout.total_seconds(),
        ):
            init(*args, **kwargs)

    return wrapped


def explain_error(
    error: BaseException, where: str, rank: int, world_size: int, timeout_seconds: float
) -> Exception | None:
    """Explains an error on this rank, and leaves a note for the others if it is this rank's own.

    The others may wait for this rank in a collective. Once its process ends, they find the connection broken, and the
    note; a backend that aborts or keeps waiting in that case (NCCL may) leaves them to the launcher.

    Args:
        error: The error that ended the run on this rank.
        where: The position in the run.
        rank: This rank.
        world_size: Number of ranks.
        timeout_seconds: How long ranks wait for each other.

    Returns:
        The error of the rank that failed, or that a rank did not arrive in time; `None` if the error needs no
        explanation.
    """
    if world_size == 1 or isinstance(error, _TOLD):
        return None
    note = read_note()
    if note is not None and note.startswith(OUT_OF_MEMORY) and isinstance(error, RuntimeError):
        return MicroBatchMemoryError(note.removeprefix(OUT_OF_MEMORY))
    of_torch = type(error) is RuntimeError or isinstance(error, dist.DistError)
    if not of_torch or not re.search(f"gloo|nccl|connection|socket|{_LATE}", str(error), re.IGNORECASE):
        if note is None:
            leave_note(f"rank {rank} failed {where}: {in_words(error)}")
        wait_until_note_is_read()
        return None
    if note is not None:
        wait_until_note_is_read()
        return RemoteError(note)
    if not re.search(_LATE, str(error), re.IGNORECASE):
        return _missing_ranks_error(where)
    message = (
        f"Rank {rank} waited {timeout_seconds:g} seconds (ddp_timeout) for others {where}. {_late(rank, world_size)}: "
        "see their logs, or py-spy; if they are only slow, raise ddp_timeout. The newest checkpoint resumes the run."
    )
    leave_note(message)
    return TimeoutError(message)


def _missing_ranks_error(where: str) -> RemoteError | None:
    """Names the ranks that ended without an error; `None` if none did, and only the connection broke."""
    gone = find_missing_ranks()
    if note := read_note():  # it arrived meanwhile
        return RemoteError(note)
    if not gone:
        return None
    message = (
        f"{_named(gone)} ended without an error message {where}: by os._exit, a SIGKILL (as when a machine runs out of "
        "memory), or with the machine itself; or its own log has the error. The run can be resumed from its newest "
        "checkpoint."
    )
    leave_note(message)
    wait_until_note_is_read(gone)
    return RemoteError(message)


def _late(rank: int, world_size: int) -> str:
    """Names the ranks that do not wait themselves."""
    _set(_waiting(rank))
    time.sleep(_SECONDS_TO_BE_TOLD)
    ranks = [other for other in range(world_size) if other != rank and not _is_set(_waiting(other))]
    return f"No message came from {_named(ranks)}" if ranks else "All of them waited too, but at another place"


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
