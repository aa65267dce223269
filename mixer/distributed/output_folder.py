"""Where several nodes keep a run: on one file system, or each on a disk of its own."""

import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from mixer.distributed.collectives import RankSync


def check_shared(folder: Path, writes: bool, rank_sync: RankSync, unseen: str, crowded: str = "") -> None:
    """Makes sure that every rank sees the files of just one that writes; all ranks have to call it.

    Args:
        folder: Where files are written, on this rank.
        writes: Whether this rank writes them.
        rank_sync: Brings the ranks together.
        unseen: What to do if a rank sees the files of none.
        crowded: What to do if several, each the first of a node, write into the same folder.

    Raises:
        ValueError: On all ranks, if it is not so.
        RemoteError: If another rank cannot write there; that one raises its own error.
    """
    if rank_sync.world_size == 1:
        return
    mark = folder / f".rank-{secrets.token_hex(8)}"  # a name that no cache of a network file system has looked up
    try:
        rank_sync.run_on_all(lambda: _put(mark) if writes else None)
        names = rank_sync.gather_bytes(mark.name.encode() if writes else b"")
        seen = [rank for rank, name in enumerate(names) if name and (folder / name.decode()).exists()]
        by_rank = [json.loads(found) for found in rank_sync.gather_bytes(json.dumps(seen).encode())]
    finally:
        if writes:
            mark.unlink(missing_ok=True)
    blind = [rank for rank, found in enumerate(by_rank) if not found]
    if blind:
        raise ValueError(f"{folder}: {_ranks(blind)} not see what rank 0 writes there, on a disk of its own. {unseen}")
    together = max(by_rank, key=len)
    if len(together) > 1:
        raise ValueError(f"{folder}: ranks {together}, each the first of a node, would write the same files. {crowded}")


def share_files(folder: Path, names: Sequence[str], writes: bool, rank_sync: RankSync) -> None:
    """Gives every node the files that ranks have written one each; all ranks have to call it.

    Args:
        folder: Where they were written, on this rank.
        names: Those that this rank may have written.
        writes: Whether this rank writes those of the others.
        rank_sync: Brings the ranks together.
    """
    found: dict[Path, bytes] = {}
    for name in names:
        own = folder / name
        contents = rank_sync.gather_bytes(own.read_bytes() if own.is_file() else b"")
        places = rank_sync.gather_bytes(name.encode())
        found |= {folder / place.decode(): content for place, content in zip(places, contents, strict=True)}
        found.pop(own)
    for path, content in found.items() if writes else ():
        if content:
            path.write_bytes(content)


def _put(mark: Path) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} does" if len(ranks) == 1 else f"ranks {list(ranks)} do"
