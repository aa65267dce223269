"""A note that a rank leaves before it ends alone, for those that find the connection broken."""

import contextlib
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

_KEY = "mixer/why-a-rank-ended"


def leave_note(text: str) -> None:
    """Leaves a note, where there are other ranks.

    Args:
        text: Why this rank ends.
    """
    _with_store(lambda store: store.set(_KEY, text))


def read_note() -> str | None:
    """Reads what another rank left.

    Returns:
        The note; `None` if there is none, or it went down with the rank that kept the store.
    """
    found: bytes | None = _with_store(lambda store: store.get(_KEY) if store.check([_KEY]) else None)
    return None if found is None else found.decode()


def remove_note() -> None:
    """Removes notes of an earlier run in the same processes."""
    _with_store(lambda store: [store.delete_key(key) for key in (_KEY, _waiting(dist.get_rank()))])


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


def _waiting(rank: int) -> str:
    return f"mixer/waited/{rank}"


def _with_store(use: Any) -> Any:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    with contextlib.suppress(Exception):  # the store may be gone, and a note is only a help
        return use(distributed_c10d._get_default_store())
    return None
