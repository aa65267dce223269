"""Gathering of rows that only one rank has."""

from collections.abc import Mapping
from functools import partial

from mixer.distributed.collectives import RankSync
from replay.storage import Row
from replay.storage.codec import decode, encode

_HEAD = 16  # bytes before each row: its number and its length


def gather_rows(rank_sync: RankSync, own: Mapping[int, Row]) -> tuple[dict[int, Row], int]:
    """Gathers rows on all ranks; all ranks have to call it.

    Args:
        rank_sync: The collectives.
        own: This rank's rows, by number.

    Returns:
        The rows of all ranks, and the bytes transferred: 0 on a single rank.

    Raises:
        TypeError: If a row of this rank holds an unsupported type.
        RemoteError: If another rank failed that way.
    """
    if rank_sync.world_size == 1:
        return dict(own), 0
    messages = rank_sync.gather_bytes(rank_sync.run_on_all(partial(_message, own)))
    rows: dict[int, Row] = {}
    for message in messages:
        view, place = memoryview(message), 0
        while place < len(view):
            number = int.from_bytes(view[place : place + 8], "little")
            length = int.from_bytes(view[place + 8 : place + _HEAD], "little")
            rows[number] = decode(view[place + _HEAD : place + _HEAD + length])
            place += _HEAD + length
    return rows, sum(map(len, messages))


def _message(own: Mapping[int, Row]) -> bytes:
    parts = []
    for number, row in own.items():
        content = encode(row)
        parts += [number.to_bytes(8, "little"), len(content).to_bytes(8, "little"), content]
    return b"".join(parts)
