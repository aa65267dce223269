"""Notes that a rank leaves before it ends alone, for those that find the connection broken.

They lie in the store that the ranks met in. `torchrun` keeps that; where ranks are started by hand, or by `srun`, it is
in the process of rank 0 and ends with it. So each rank listens while it trains, also while it is held up in a
collective, and rank 0 stays until all have heard.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import Store

_KEY, _CALL = "mixer/why-a-rank-ended", "mixer/who-is-there"
_POLL_SECONDS = 0.25
_MOST_POLLS_A_SECOND = 1_000  # of all ranks together: one process keeps the store
_POLLS_TO_ANSWER = 8

_heard: list[str] = []  # the note, where the store may be gone by now


def leave_note(text: str) -> None:
    """Leaves a note, where there are other ranks.

    Args:
        text: Why this rank ends.
    """
    _with_store(lambda store: store.set(_KEY, f"{dist.get_rank()} {text}"))


def read_note() -> str | None:
    """Reads what another rank left.

    Returns:
        The note; `None` if there is none, or nobody has heard it before it went down with the rank that kept it.
    """
    found: str | None = _with_store(_read)
    if found is None:  # the store is gone
        return _heard[0] if _heard else None
    return found.partition(" ")[2] or None


def _read(store: Store) -> str:
    # A note is emptied and never deleted: of a key that is gone after the check, `get` would wait for it to come.
    return store.get(_KEY).decode() if store.check([_KEY]) else ""


def remove_note() -> None:
    """Removes this rank's notes of an earlier run in the same processes: another's may be of its present one."""
    _heard.clear()
    if (_with_store(_read) or "").partition(" ")[0] == str(_rank()):
        _with_store(lambda store: store.set(_KEY, ""))
    _with_store(lambda store: [store.delete_key(key) for key in (_waiting(_rank()), _here(_rank()))])


def note_waiting(rank: int) -> None:
    """Notes that a rank has waited for others in vain.

    Args:
        rank: The rank.
    """
    _with_store(lambda store: store.set(_waiting(rank), ""))


def has_waited(rank: int) -> bool:
    """Says whether a rank has waited for others in vain.

    Args:
        rank: The rank.

    Returns:
        Whether it said so.
    """
    return bool(_with_store(lambda store: store.check([_waiting(rank)])))


def stay_until_heard() -> None:
    """Has the rank in whose process the store is stay until the others know what is noted there, or do not answer."""
    _answer_call()
    if _keeps_store(_rank()):
        _absent()


def who_is_gone() -> list[int]:
    """Calls all ranks, and waits for those that train to answer.

    Returns:
        Those that do not: their processes have ended, or stopped.
    """
    if _with_store(lambda store: store.set(_CALL, "") or True) is None:
        return [0] if _keeps_store(0) else []
    return _absent()


def _absent() -> list[int]:
    """Gives the ranks that do not listen, after giving them time to answer."""
    _answer_call()
    end = time.monotonic() + _POLLS_TO_ANSWER * _poll_seconds()
    absent = list(range(dist.get_world_size())) if dist.is_initialized() else []
    while absent and time.monotonic() < end:
        absent = [rank for rank in absent if not _has_answered(rank)]
        time.sleep(_POLL_SECONDS / 5)
    return absent


def _has_answered(rank: int) -> bool:
    return bool(_with_store(lambda store: store.check([_here(rank)])))


def _answer_call() -> None:
    _with_store(lambda store: store.set(_here(_rank()), ""))


class Listener:
    """Hears, while it is entered, what other ranks leave, and answers them: in a thread, beside what the rank does."""

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
    def _answer(store: Store) -> bool:
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
    with contextlib.suppress(Exception):  # the store may be gone, and a note is only a help
        return use(distributed_c10d._get_default_store())
    return None
